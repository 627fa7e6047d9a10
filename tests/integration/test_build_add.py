"""New documents for a datastore, with a real Ray: its own reducer makes their keys, and its files are shared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from decoder_client.reducer import KeyReducer
from decoder_client.target_model import load_target_model
from retriever_service.building.config import BuildConfig
from retriever_service.building.ray_connection import connect
from retriever_service.cli import main
from retriever_service.datastore import Datastore, read_manifest, verify
from retriever_service.evolving import merge
from tests.support.building import QUESTIONS, write_corpus
from tests.support.in_process_jobs import build_here
from tests.support.models import save_tiny_model

MORE = [("How do I count a list?", "Call len() on the list."), ("How do I join texts?", "Call join() with them.")]


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[None]:
    """One Ray for all builds of this module."""
    with connect(None, 1):
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def root(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root whose current build is of the four questions, in two partitions."""
    folder = tmp_path_factory.mktemp("root")
    corpus = write_corpus(folder / "corpus.jsonl")
    build_here(BuildConfig(model=str(model), corpus=(corpus,), out=folder / "first", dims=8, partitions=2))
    assert main(["publish", str(folder), str(folder / "first")]) == 0
    return folder


def corpus_of(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(json.dumps({"prompt": one, "response": other}) + "\n" for one, other in pairs))
    return path


def test_new_documents_are_found_beside_the_old_ones(
    model: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two documents that are there, and two that are not, in one file.
    more = corpus_of(tmp_path / "more.jsonl", [*QUESTIONS[:2], *MORE])
    out = root / "second"
    arguments = ["add", str(root), "--model", str(model), "--corpus", str(more), "--out", str(out), "--json"]
    capsys.readouterr()
    assert main(arguments) == 0
    summary = json.loads(capsys.readouterr().out)
    before, after = Datastore.open(root / "first"), Datastore.open(out)
    target = load_target_model(model, device="cpu")
    reducer = KeyReducer.from_bytes(before.reducer_bytes)
    assert after.reducer_bytes == before.reducer_bytes
    for at, (prompt, answer) in enumerate([*QUESTIONS, *MORE]):
        assert target.tokenizer is not None
        prompt_ids = target.encode_prompt(prompt, chat=True)
        answer_ids = [*target.tokenizer(answer)["input_ids"], target.tokenizer.eos_token_id]
        ids = torch.tensor([prompt_ids + answer_ids])
        states = target.hidden_states(ids, torch.ones_like(ids))[0, len(prompt_ids) - 1 : -1]
        near = after.search(reducer.reduce(states.numpy()), np.array(answer_ids), neighbors=2)
        assert near.similarities[:, 0].min() > 0.99
        if at < 2:  # one that is there is not there twice
            stored = after.entries(near.ids[:, 1][near.ids[:, 1] >= 0])
            assert len(stored.next_tokens) <= len(answer_ids)
    new_tokens = sum(len(target.tokenizer(answer)["input_ids"]) + 1 for _, answer in MORE)
    assert (summary["added"], after.num_entries) == (new_tokens, before.num_entries + new_tokens)
    assert summary["known"] > 0
    assert verify(out).entries == after.num_entries
    for part in before.manifest.partitions:
        for segment in part.segments:
            for name in segment.files:
                assert (out / segment.directory / name).samefile(root / "first" / segment.directory / name)
    assert [file.name for file in after.manifest.corpus.files] == ["corpus.jsonl", "more.jsonl"]
    assert sorted(path.name for path in root.iterdir() if not path.name.startswith(".CURRENT")) == [
        "CURRENT", "corpus.jsonl", "first", "second",
    ]  # fmt: skip
    assert main(["publish", str(root), str(out)]) == 0
    (tmp_path / "merged").mkdir()
    assert merge([out], tmp_path / "merged").num_entries == after.num_entries


def test_files_it_was_built_from_are_not_read_again(
    model: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["add", str(root / "first"), "--model", str(model), "--out", str(tmp_path / "out"), "--corpus"]
    assert main([*arguments, str(root / "corpus.jsonl")]) == 1
    assert "built from every file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_another_model_is_refused_with_both_values(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_tiny_model("gpt2", tmp_path / "other")
    more = corpus_of(tmp_path / "more.jsonl", MORE)
    arguments = ["add", str(root / "first"), "--model", str(other), "--corpus", str(more), "--out"]
    assert main([*arguments, str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert read_manifest(root / "first").model.weights_fingerprint in said
    assert "against" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["more.jsonl", "other"]


def test_separate_builds_of_one_reducer_can_be_merged(model: Path, root: Path, tmp_path: Path) -> None:
    more = corpus_of(tmp_path / "more.jsonl", MORE)
    config = BuildConfig(model=str(model), corpus=(more,), out=tmp_path / "apart", dims=8, reducer_of=root / "first")
    apart = build_here(config)
    assert apart.key_recipe == read_manifest(root / "first").key_recipe
    (tmp_path / "merged").mkdir()
    merged = merge([root / "first", tmp_path / "apart"], tmp_path / "merged")
    assert merged.num_entries == read_manifest(root / "first").num_entries + apart.num_entries
