"""Files an evaluation reads: known answers, their traces and cache, the store's answers, cost curves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from decoder_client.evaluation.cost_curve import CostCurveError, cost_points, pass_seconds, read_cost_curve
from decoder_client.evaluation.results import CostPoint
from decoder_client.evaluation.store import read_store_answers
from decoder_client.evaluation.token_records import TokenFileError, read_token_records
from decoder_client.evaluation.traces import LIKELY, load_traces
from decoder_client.target_model import TargetModel, load_target_model
from retriever_service.datastore import Datastore
from tests.support.evaluation import TinyWorld, write_records
from tests.support.models import save_tiny_model

RECORDS = [([1, 2], [3, 4, 5]), ([6], [7])]


def lines_in(folder: Path, *lines: object) -> Path:
    path = folder / "some answers.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


# Known answers


def test_records_are_read_in_order_named_and_limited(tmp_path: Path) -> None:
    path = lines_in(
        tmp_path,
        "\ufeff" + json.dumps({"prompt_ids": [1], "response_ids": [2, 3], "family": "sort", "text": "line\u2028end"}),
        "",
        {"prompt_ids": [4], "response_ids": []},
        {"prompt_ids": [5], "response_ids": [6], "name": "own"},
        {"prompt_ids": [7], "response_ids": [8]},
    )
    read = read_token_records(path, vocab_size=9)
    assert [(one.name, one.prompt, one.answer) for one in read] == [
        ("sort:1", (1,), (2, 3)), ("own:4", (5,), (6,)), ("prompt:5", (7,), (8,)),
    ]  # fmt: skip
    assert read_token_records(path, vocab_size=9, limit=2) == read[:2]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "Line 2 .* not JSON"),
        ("[" * 100_000, "Line 2 .* not JSON"),
        ("[1]", "Line 2 .* not a record"),
        ({"prompt": "text", "response": "text"}, "Line 2 .* no prompt_ids.*--answers-out"),
        ({"prompt_ids": [1]}, "Line 2 .* no response_ids.*--answers-out"),
        ({"prompt_ids": [], "response_ids": [1]}, "Line 2 .* empty prompt"),
        ({"prompt_ids": [1], "response_ids": "12"}, "Line 2 .* response_ids must be"),
        ({"prompt_ids": [1], "response_ids": [9]}, "Line 2 .* from 0 to 8"),
        ({"prompt_ids": [-1], "response_ids": [1]}, "Line 2 .* prompt_ids must be"),
        ({"prompt_ids": [True], "response_ids": [1]}, "Line 2 .* prompt_ids must be"),
        ({"prompt_ids": [1.0], "response_ids": [1]}, "Line 2 .* prompt_ids must be"),
    ],
)
def test_a_malformed_record_is_refused_with_its_line(tmp_path: Path, line: object, complaint: str) -> None:
    path = lines_in(tmp_path, {"prompt_ids": [1], "response_ids": [2]}, line)
    with pytest.raises(TokenFileError, match=complaint):
        read_token_records(path, vocab_size=9)


def test_a_file_without_answers_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe{}")
    for path in (lines_in(tmp_path, ""), tmp_path / "missing.jsonl", tmp_path, tmp_path / "binary"):
        with pytest.raises(TokenFileError, match=path.name):
            read_token_records(path, vocab_size=9)


# Traces


def computed(target: TargetModel, records: list, folder: Path) -> tuple[list, list[int]]:
    shown: list[int] = []
    return load_traces(records, target, folder, on_trace=shown.append), shown


def test_traces_hold_what_a_forward_pass_gives_and_are_kept(world: TinyWorld, tmp_path: Path) -> None:
    records = read_token_records(world.traces, vocab_size=world.target.vocab_size)
    traces, shown = computed(world.target, records, tmp_path / "cache")
    assert shown == list(range(1, len(records) + 1))
    for trace in traces:
        ids = torch.tensor([trace.tokens])
        states = world.target.hidden_states(ids, torch.ones_like(ids))[0]
        assert torch.equal(trace.states, states)
        probabilities = world.target.logits(states).softmax(-1)
        assert torch.allclose(trace.probabilities, probabilities.gather(1, trace.next_tokens))
        assert (trace.probabilities[:, 0] == probabilities.max(dim=1).values).all()
        assert trace.next_tokens.shape == (len(trace.tokens), LIKELY)
        assert trace.disagreements == 0  # they are the model's own greedy answers
        assert not trace.states.is_inference()
    again, shown = computed(world.target, records, tmp_path / "cache")
    assert shown == []
    assert all(torch.equal(one.states, other.states) for one, other in zip(traces, again, strict=True))
    assert len(list((tmp_path / "cache" / "traces").iterdir())) == 1


def test_other_answers_are_not_taken_for_the_models_own(world: TinyWorld, tmp_path: Path) -> None:
    records = read_token_records(write_records(tmp_path / "t", [([1, 2], [3] * 20)]), vocab_size=200)
    ((trace,), _) = computed(world.target, records, tmp_path)
    assert trace.disagreements > 10


@pytest.mark.parametrize("damage", [b"", b"no tensors", None])
def test_a_damaged_cache_is_computed_again(world: TinyWorld, tmp_path: Path, damage: bytes | None) -> None:
    records = read_token_records(world.traces, vocab_size=world.target.vocab_size, limit=2)
    good, _ = computed(world.target, records, tmp_path)
    (file,) = (tmp_path / "traces").iterdir()
    file.write_bytes(file.read_bytes()[:-100] if damage is None else damage)
    again, shown = computed(world.target, records, tmp_path)
    assert shown == [1, 2]
    assert torch.equal(good[1].states, again[1].states)
    assert computed(world.target, records, tmp_path)[1] == []


def test_other_weights_or_other_tokens_are_other_traces(world: TinyWorld, tmp_path: Path) -> None:
    other = load_target_model(save_tiny_model("llama", tmp_path / "other", seed=7))
    records = read_token_records(world.traces, vocab_size=world.target.vocab_size, limit=2)
    first, _ = computed(world.target, records, tmp_path)
    assert computed(world.target, records[:1], tmp_path)[1] == [1]
    second, shown = computed(other, records, tmp_path)
    assert shown == [1, 2]
    assert not torch.equal(first[0].states, second[0].states)


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(world: TinyWorld, tmp_path: Path) -> None:
    records = read_token_records(world.traces, vocab_size=world.target.vocab_size, limit=1)
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        assert computed(world.target, records, tmp_path / "file")[1] == [1]


# The store's answers


def test_the_store_is_what_the_datastore_was_built_from(world: TinyWorld) -> None:
    expected = [json.loads(line)["response_ids"] for line in world.corpus.read_text().splitlines()]
    for files in ([], [world.corpus]):
        read = read_store_answers(files, Datastore.open(world.datastore))
        assert [list(answer) for answer in read.answers] == expected
        assert read.notes == ()


def test_a_file_of_another_sum_is_doubted_unless_its_answers_are_the_entries(world: TinyWorld, tmp_path: Path) -> None:
    datastore = Datastore.open(world.datastore)
    same, other = tmp_path / "same.jsonl", tmp_path / "other.jsonl"
    lines = world.corpus.read_text().splitlines()
    same.write_text("\n".join(reversed(lines)))  # as an answers file of another build of the same answers would be
    assert read_store_answers([same], datastore).notes == ()
    other.write_text("\n".join(lines[1:]))
    for files in ([other], [same, other], [world.corpus, other]):
        notes = read_store_answers(files, datastore).notes
        assert "other.jsonl is not among the files" in notes[-1]
        assert len(notes) == len(set(files) - {world.corpus})


def test_a_corpus_of_texts_is_refused_with_the_way_out(world: TinyWorld, tmp_path: Path) -> None:
    path = lines_in(tmp_path, {"prompt": "How?", "response": "So."})
    with pytest.raises(TokenFileError, match="--answers-out"):
        read_store_answers([path], Datastore.open(world.datastore))


# Cost curves


def test_a_cost_curve_predicts_passes(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_text(json.dumps({"tokens": [1, 9], "pass_seconds": [0.1, 0.2]}))
    curve = read_cost_curve(path)
    seconds = pass_seconds(curve)
    assert [seconds(1), seconds(5), seconds(9)] == pytest.approx([0.1, 0.15, 0.2])
    assert cost_points(curve) == (CostPoint(1, 0.1), CostPoint(9, 0.2))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"tokens": [1]}', b'{"tokens": [2, 3], "pass_seconds": [1, 1]}', b"\xff"]
)
def test_what_is_no_cost_curve_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a curve.json"
    path.write_bytes(content)
    for file in (path, tmp_path / "no curve.json", Path(os.devnull)):
        with pytest.raises(CostCurveError, match=file.name):
            read_cost_curve(file)
