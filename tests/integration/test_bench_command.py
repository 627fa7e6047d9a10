"""dresd-decoder bench with a tiny model: prompt files, methods, results on disk, and bad usage."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest

from decoder_client.cli import main
from decoder_client.evaluation.results import BENCH, Results
from tests.support.evaluation import TinyWorld


def prompts(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def bench(world: TinyWorld, file: Path, *options: str | Path) -> int:
    required = ["--model", str(world.model), "--prompts", str(file), "--max-new-tokens", "12", "--methods", "plain"]
    return main(["bench", *required, *map(str, options)])


def test_all_kinds_of_prompts_are_decoded_and_recorded(
    world: TinyWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = prompts(
        tmp_path,
        {"prompt": "hello hello hello", "family": "greeting"},
        "",
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "an answer not to decode"}]},
        {"prompt_ids": [5, 6, 5, 6, 5], "name": "ids"},
    )
    out, page = tmp_path / "results.json", tmp_path / "report.html"
    options = ["--methods", "plain,prompt-lookup", "--nodes", "8,4", "--repeats", "2", "--json", out, "--html", page]
    assert bench(world, file, *options) == 0
    printed = capsys.readouterr().out
    for name in ("greeting:1", "prompt:3", "ids:4", "prompt-lookup@4", "prompt-lookup@8"):
        assert name in printed
    results = Results.load(out)
    assert (results.kind, results.prompts) == (BENCH, ("greeting:1", "prompt:3", "ids:4"))
    assert [one.label for one in results.methods] == ["plain", "prompt-lookup@4", "prompt-lookup@8"]
    assert [(one.compared, one.identical, len(one.answers)) for one in results.methods] == [(6, 6, 6)] * 3
    assert all(one.speedup.low <= one.speedup.value <= one.speedup.high for one in results.methods)
    assert all(answer.tokens and answer.difference is None for one in results.methods for answer in one.answers)
    assert [answer.repeat for answer in results.methods[0].answers] == [0, 0, 0, 1, 1, 1]
    (sample,) = results.samples
    assert sample.label == "prompt-lookup@8"
    assert "prompt-lookup@8" in page.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.jsonl", "report.html", "results.json"]


def test_settings_keep_their_types_and_the_environment_is_recorded(world: TinyWorld, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    file = prompts(tmp_path, {"prompt": "hello"})
    assert bench(world, file, "--nodes", "8,4", "--seed", "3", "--no-chat", "--json", out) == 0
    results = Results.load(out)
    expected = {
        "model": str(world.model), "prompts": str(file), "methods": ("plain",), "nodes": (4, 8), "limit": None,
        "max_new_tokens": 12, "deadline_ms": 50.0, "seed": 3, "no_chat": True, "json": str(out), "repeats": 1,
    }  # fmt: skip
    assert {name: results.settings[name] for name in expected} == expected
    assert {name: type(results.settings[name]) for name in expected} == {n: type(v) for n, v in expected.items()}
    assert results.environment.torch_threads >= 1
    assert {"torch", "transformers", "dresd"} <= set(results.environment.versions)
    assert results.weights_fingerprint == world.target.identity().weights_fingerprint


def test_methods_that_draft_from_the_store_give_the_same_output(world: TinyWorld, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    methods = "plain,rest,dresd-paper,token-recycling,dense,dresd"
    assert bench(world, world.traces, "--methods", methods, "--datastore", world.datastore, "--json", out) == 0
    results = Results.load(out)
    assert [one.method for one in results.methods] == methods.split(",")
    assert all(one.identical == one.compared == 5 for one in results.methods)
    assert {one.method: one.total.accepted > 0 for one in results.methods}["dense"]
    assert (results.store.build_id, results.store.entries) == ("test-build", 163)
    assert {one.other for one in results.comparisons} == {"rest@32", "dresd-paper", "token-recycling@32", "dense@32"}


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "No prompts"),
        (["{"], "Line 1 .* not JSON"),
        ([{"prompt": "fine"}, "[1]"], "Line 2 .* not a record"),
        ([{"prompt": "fine"}, {"text": "no prompt"}], "Line 2 .* holds none of"),
        ([{"prompt_ids": [1, -1]}], "Line 1 .* token ids"),
        ([{"prompt_ids": [10**9]}], "Line 1 .* token ids"),
        ([{"prompt_ids": ["a"]}], "Line 1 .* token ids"),
        ([{"messages": [{"role": "user"}]}], "Line 1 .* role and content"),
        ([{"messages": ["hi"]}], "Line 1 .* role and content"),
    ],
)
def test_a_bad_prompt_file_is_one_sentence(
    world: TinyWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[object], complaint: str
) -> None:
    assert bench(world, prompts(tmp_path, *lines)) == 1
    errors = capsys.readouterr().err
    assert re.search(complaint, errors), errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--methods", "rest", "--datastore", "nowhere"], "nowhere is not a folder"),
        (["--json", "nowhere/results.json"], "Cannot write 'nowhere/results.json'"),
        (["--html", "."], "Cannot write '.'"),
        (["--methods", "dense", "--retriever", "127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_measured_is_said_before_measuring(
    world: TinyWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], complaint: str
) -> None:
    assert bench(world, prompts(tmp_path, {"prompt": "hello"}), *options) == 1
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert "tok/fwd" not in captured.out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--methods", "dresd"], "dresd needs a retriever"),
        (["--methods", "rest,dresd-paper"], "rest, dresd-paper needs the datastore"),
    ],
)
def test_methods_without_what_they_draft_from_are_wrong_usage(
    world: TinyWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], complaint: str
) -> None:
    assert bench(world, prompts(tmp_path, {"prompt": "hello"}), *options) == 2
    assert complaint in capsys.readouterr().err


def test_a_missing_prompt_file_is_named(world: TinyWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(world, tmp_path / "none.jsonl") == 1
    assert "none.jsonl" in capsys.readouterr().err


def test_results_may_go_to_what_is_no_file(world: TinyWorld, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert bench(world, prompts(tmp_path, {"prompt": "hello"}), "--limit", "1", "--json", pipe) == 0
        assert json.loads(os.read(reader, 1_000_000))["kind"] == BENCH
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
