"""Answers that the datastore was built from are noticed, whole or in part; others that begin like them are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from decoder_client.cli import main
from decoder_client.evaluation.results import Results
from decoder_client.evaluation.seen_before import seen_before
from decoder_client.evaluation.token_records import TokenRecord, read_token_records
from retriever_service.datastore import Datastore
from tests.support.evaluation import TinyWorld, write_records


def sentence(world: TinyWorld, *records: TokenRecord, corpus: tuple[Path, ...] = ()) -> str | None:
    return seen_before(records, Datastore.open(world.datastore), corpus, vocab_size=world.target.vocab_size)


def stored(world: TinyWorld) -> list[TokenRecord]:
    return read_token_records(world.corpus, vocab_size=world.target.vocab_size)


@pytest.mark.parametrize("tokens", [14, 16, 19, 24])
def test_an_answer_in_the_datastore_is_seen_and_so_is_its_beginning(world: TinyWorld, tokens: int) -> None:
    for record in stored(world):
        assert sentence(world, replace(record, answer=record.answer[:tokens])) is not None


def test_another_answer_is_not(world: TinyWorld) -> None:
    random = np.random.default_rng(0)
    fresh = TokenRecord("fresh", (1, 2, 3), tuple(random.integers(100, size=30).tolist()))
    assert sentence(world, fresh) is None
    # A third of it is the datastore's, as where answers begin alike.
    known = stored(world)[0]
    alike = TokenRecord("alike", known.prompt, known.answer + fresh.answer + fresh.answer)
    assert sentence(world, alike) is None
    found = sentence(world, fresh, known)
    assert found is not None
    assert found.startswith("1 of 2 answers")
    assert known.name in found


@pytest.mark.parametrize("same", ["prompt", "answer"])
def test_a_prompt_or_an_answer_in_the_corpus_is_seen(world: TinyWorld, same: str, tmp_path: Path) -> None:
    record = TokenRecord("one", (1, 2, 3), (4, 5, 6))
    others = {"prompt": ([1, 2, 3], [9]), "answer": ([9], [4, 5, 6])}
    assert sentence(world, record) is None
    assert sentence(world, record, corpus=(write_records(tmp_path / "corpus.jsonl", [others[same]]),)) is not None
    assert sentence(world, record, corpus=(write_records(tmp_path / "other.jsonl", [([9], [9])]),)) is None


def test_a_corpus_of_texts_is_passed_over(world: TinyWorld, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"prompt": "a", "response": "b"}), "utf-8")
    assert sentence(world, TokenRecord("one", (1,), (2, 3)), corpus=(texts, tmp_path / "none.jsonl")) is None


@pytest.mark.parametrize("command", ["replay", "bench"])
def test_both_commands_warn_and_record_it(
    world: TinyWorld,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DRESD_CACHE", str(tmp_path / "cache"))
    out, page = tmp_path / "results.json", tmp_path / "results.html"
    source = ["--traces", world.traces] if command == "replay" else ["--prompts", world.traces]
    options = ["--model", world.model, *source, "--datastore", world.datastore, "--methods", "plain", "--json", out]
    if command == "bench":
        options += ["--max-new-tokens", "24"]
    assert main([command, *map(str, options), "--html", str(page)]) == 0
    captured = capsys.readouterr()
    (warning,) = [line for line in captured.err.splitlines() if line.startswith("warning: ")]
    # Two of the five answers are in the store.
    assert warning.startswith("warning: 2 of 5 answers measured here are among those the datastore was built from")
    assert Results.load(out).notes == (warning.removeprefix("warning: "),)
    assert "2 of 5 answers" in captured.out
    assert "2 of 5 answers" in page.read_text("utf-8")
