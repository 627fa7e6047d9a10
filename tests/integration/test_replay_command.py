"""dresd-decoder replay with a tiny model and a datastore of its own: tables, results, predictions, and bad usage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decoder_client.cli import main
from decoder_client.evaluation.results import REPLAY, Results
from retriever_service.serving.server import ServeConfig
from tests.support.evaluation import TinyWorld, write_records
from tests.support.serving import local_config, serving


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRESD_CACHE", str(tmp_path / "cache"))


def replay(world: TinyWorld, *options: str | Path, traces: Path | None = None) -> int:
    required = ["--model", str(world.model), "--traces", str(traces or world.traces)]
    return main(["replay", *required, *map(str, options)])


def test_every_method_is_replayed_at_every_budget(
    world: TinyWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    methods = ["--methods", "plain,prompt-lookup,rest,dresd-paper,dense,dresd", "--nodes", "4,16"]
    assert replay(world, *methods, "--datastore", world.datastore, "--json", out) == 0
    printed = capsys.readouterr().out
    results = Results.load(out)
    labels = [one.label for one in results.methods]
    assert labels == [
        "plain", "prompt-lookup@4", "prompt-lookup@10", "rest@4", "rest@16", "dresd-paper", "dense@4", "dense@16",
        "dresd@4", "dresd@16",
    ]  # fmt: skip
    assert all(f"| {label} " in printed for label in labels)
    assert (results.kind, results.cost_curve) == (REPLAY, ())
    by_label = {one.label: one for one in results.methods}
    assert by_label["plain"].tokens_per_forward.value == 1.0
    # Two of the five answers are in the store.
    assert by_label["dresd@16"].tokens_per_forward.value > 1.5
    assert {one.total.tokens for one in results.methods} == {5 * 24}
    assert all(one.speedup is None and one.compared == 0 for one in results.methods)
    assert "predicted" not in printed
    (sample,) = results.samples
    assert sample.label == "dresd@16"
    assert len(sample.tokens) == 24


def test_a_cost_curve_predicts_speed_ups_against_plain_decoding(
    world: TinyWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curve, out = tmp_path / "curve.json", tmp_path / "results.json"
    # An hour a pass: what drafting takes does not matter.
    curve.write_text(json.dumps({"tokens": [1, 65], "pass_seconds": [3600.0, 3600.0]}))
    options = ["--methods", "dresd", "--nodes", "16", "--datastore", world.datastore, "--cost-curve", curve]
    assert replay(world, *options, "--json", out) == 0
    assert "speed-up (predicted)" in capsys.readouterr().out
    results = Results.load(out)
    plain, dresd = results.methods
    assert (plain.label, plain.speedup.value) == ("plain", pytest.approx(1.0, abs=1e-4))
    assert dresd.speedup.value == pytest.approx(dresd.tokens_per_forward.value, rel=1e-3)
    assert [(point.tokens, point.seconds) for point in results.cost_curve] == [(1, 3600.0), (65, 3600.0)]


def test_a_service_gives_the_drafts_of_the_datastore(world: TinyWorld, tmp_path: Path) -> None:
    local, remote = tmp_path / "local.json", tmp_path / "remote.json"
    methods = ["--methods", "dense,dresd", "--nodes", "16"]
    assert replay(world, *methods, "--datastore", world.datastore, "--json", local) == 0
    config: ServeConfig = local_config(world.datastore)
    with serving(config) as server:
        options = ["--retriever", server.address, "--deadline-ms", "60000"]
        assert replay(world, *methods, *options, "--json", remote) == 0
    for here, there in zip(Results.load(local).methods, Results.load(remote).methods, strict=True):
        assert here.total.forwards == there.total.forwards
        assert there.total.retrievals == there.total.retrievals_answered > 0


def test_foreign_answers_and_stores_are_told(
    world: TinyWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = write_records(tmp_path / "foreign.jsonl", [([1, 2, 3], [4] * 10)])
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(world.corpus.read_text().splitlines()[1:]))
    options = ["--methods", "rest", "--datastore", world.datastore, "--corpus", other]
    assert replay(world, *options, traces=foreign) == 0
    printed = capsys.readouterr().out
    assert "of the traces' 10 tokens are not this model's greedy choice" in printed
    assert "other.jsonl is not among the files" in printed


@pytest.mark.parametrize(
    ("lines", "options", "complaint"),
    [
        (None, ["--methods", "plain", "--cost-curve", "none.json"], "Cannot read the cost curve 'none.json'"),
        ([{"prompt": "text"}], ["--methods", "plain"], "no prompt_ids"),
        ([{"prompt_ids": [1], "response_ids": [2] * 300}], ["--methods", "plain"], "longer than the model's window"),
    ],
)
def test_what_cannot_be_replayed_is_one_sentence(
    world: TinyWorld,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lines: list[object] | None,
    options: list[str],
    complaint: str,
) -> None:
    traces = world.traces
    if lines is not None:
        traces = tmp_path / "traces.jsonl"
        traces.write_text("\n".join(map(json.dumps, lines)))
    assert replay(world, *options, traces=traces) == 1
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert "Traceback" not in captured.err
