"""Builds: what is in the datastore is what the model computes, for every architecture."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from decoder_client.reducer import KeyReducer
from decoder_client.target_model import TargetModel, load_target_model
from dresd.draft_tree import PAD
from retriever_service.building.config import BuildConfig
from retriever_service.building.errors import BuildError
from retriever_service.building.job import build
from retriever_service.building.progress import NoProgress
from retriever_service.datastore import Datastore, verify
from tests.support.building import QUESTIONS, write_corpus
from tests.support.in_process_jobs import build_here
from tests.support.models import ARCHITECTURES, LARGE_VOCABULARY_OFFSET, save_tiny_model


class Told(NoProgress):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(architecture: str) -> Path:
        if architecture not in made:
            made[architecture] = save_tiny_model(architecture, tmp_path_factory.mktemp("models") / architecture)
        return made[architecture]

    return folder


def answered_tokens(target: TargetModel) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) of the corpus, encoded without the builder's code."""
    assert target.tokenizer is not None
    return [
        (
            target.encode_prompt(prompt, chat=True),
            [*target.tokenizer(answer)["input_ids"], target.tokenizer.eos_token_id],
        )
        for prompt, answer in QUESTIONS
    ]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_answer_token_finds_its_own_entry(
    architecture: str, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "store"
    model = tmp_path / "odd\nmodel"
    model.symlink_to(model_of(architecture))
    config = BuildConfig(
        model=str(model),
        corpus=(write_corpus(tmp_path / "odd\ncorpus.jsonl"),),
        command="build\nit",
        out=out,
        dims=8,
        codec="flat",
        partitions=2,
        continuation_length=6,
        # So that some documents are embedded before and some after the reducer is fitted.
        fit_tokens=40,
    )
    manifest = build_here(config)
    target = load_target_model(model_of(architecture), device="cpu")
    assert manifest.model == replace(target.identity(), name=manifest.model.name)
    assert manifest.token_dtype == ("uint32" if architecture == "gemma3" else "uint16")
    assert verify(out).entries == manifest.num_entries
    assert (manifest.corpus.files[0].name, manifest.command) == (r"odd\ncorpus.jsonl", r"build\nit")

    store = Datastore.open(out)
    reducer = KeyReducer.from_bytes(store.reducer_bytes)
    answers = answered_tokens(target)
    assert manifest.num_entries == sum(len(answer) for _, answer in answers)
    for prompt, answer in answers:
        ids = torch.tensor([prompt + answer])
        states = target.hidden_states(ids, torch.ones_like(ids))[0, len(prompt) - 1 : -1]
        keys = reducer.reduce(states.numpy())
        drafts = store.draft(keys, np.array(answer), neighbors=1, max_nodes=6, max_depth=6, temperature=0.1)
        # The nearest entry may be an equal one elsewhere only at the same distance.
        assert drafts.best_similarities.min() > 0.999
        followed = 0
        for at, tree in enumerate(drafts.trees):
            assert tree.parents.tolist() == list(range(-1, len(tree) - 1))
            followed += tree.tokens.tolist() == answer[at + 1 : at + 7]
        assert followed >= 0.9 * len(answer)
    if architecture == "gemma3":
        assert max(int(tree.tokens.max(initial=0)) for tree in drafts.trees) >= LARGE_VOCABULARY_OFFSET


def test_the_token_table_holds_what_the_model_finds_likely(model_of: Callable[[str], Path], tmp_path: Path) -> None:
    # One document, so that a pair seen once has known probabilities; pairs are kept from two occurrences on.
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"prompt_ids": [5, 6, 7], "response_ids": [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]}\n')
    build_here(BuildConfig(model=str(model_of("llama")), corpus=(corpus,), out=tmp_path / "store", dims=4))
    target = load_target_model(model_of("llama"), device="cpu")
    ids = torch.arange(5, 20)[None]
    expected = target.logits(target.hidden_states(ids, torch.ones_like(ids))[0]).softmax(-1)
    table = Datastore.open(tmp_path / "store").token_table
    tokens, probabilities, _ = table.lookup(np.array([PAD]), np.array([9]))
    best = expected[4].topk(8)
    assert tokens[0].tolist() == best.indices.tolist()
    np.testing.assert_allclose(probabilities[0], best.values.numpy(), atol=2e-3)


def test_equal_builds_are_equal_and_the_options_count(model_of: Callable[[str], Path], tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl")

    def config(name: str, **options: object) -> BuildConfig:
        return BuildConfig(model=str(model_of("llama")), corpus=(corpus,), out=tmp_path / name, dims=8, **options)

    first = build_here(config("first"))
    assert build(config("by Ray")).build_id == first.build_id
    with_prompts = build_here(config("prompts", prompt_keys=True))
    assert with_prompts.build_id != first.build_id
    assert with_prompts.num_entries == with_prompts.corpus.tokens - with_prompts.corpus.documents


def test_the_models_own_answers_are_stored_and_can_be_read_again(
    model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    answers = tmp_path / "answers.jsonl"
    options = {"model": str(model_of("qwen3")), "dims": 8}
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    responded = build_here(
        BuildConfig(
            corpus=(corpus,),
            out=tmp_path / "own",
            respond=True,
            max_new_tokens=20,
            answers_out=answers,
            **options,
        )
    )
    target = load_target_model(model_of("qwen3"), device="cpu")
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [line["prompt"] for line in lines] == [prompt for prompt, _ in QUESTIONS]
    for line in lines:
        assert line["prompt_ids"] == target.encode_prompt(line["prompt"], chat=True)
        ids = torch.tensor([line["prompt_ids"] + line["response_ids"]])
        likely = target.logits(target.hidden_states(ids, torch.ones_like(ids))[0]).argmax(-1).tolist()
        assert line["response_ids"] == likely[len(line["prompt_ids"]) - 1 : -1]
        assert line["response"] == target.decode(line["response_ids"])
    again = build_here(BuildConfig(corpus=(answers,), out=tmp_path / "again", **options))
    assert again.build_id == responded.build_id


def test_long_documents_are_split_and_short_ones_skipped_and_both_are_said(
    model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    texts = ["x" * 600, "y", "fits"]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    told = Told()
    config = BuildConfig(model=str(model_of("gpt2")), corpus=(corpus,), out=tmp_path / "store", dims=8)
    manifest = build_here(config, told)
    assert (manifest.corpus.documents, manifest.corpus.split, manifest.corpus.skipped) == (3, 1, 1)
    assert manifest.num_entries == 599 + 3
    assert any("1 document longer than the model's window of 256 tokens" in line for line in told.lines)
    assert any("1 document skipped" in line for line in told.lines)


def test_prompts_as_long_as_the_window_are_skipped(model_of: Callable[[str], Path], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in ("x" * 300, "short")))
    told = Told()
    config = BuildConfig(
        model=str(model_of("gpt2")), corpus=(corpus,), out=tmp_path / "store", dims=4, respond=True, max_new_tokens=9
    )
    manifest = build_here(config, told)
    assert manifest.corpus.skipped == 1
    assert 0 < manifest.num_entries <= 9
    assert any("1 prompt skipped" in line for line in told.lines)


def test_a_model_that_computes_nan_ends_the_build_with_a_sentence(
    model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    target = load_target_model(model_of("llama"), device="cpu", packed_linear=False)
    with torch.no_grad():
        target.model.model.norm.weight[0] = float("nan")
    target.model.save_pretrained(tmp_path / "model")
    assert target.tokenizer is not None
    target.tokenizer.save_pretrained(tmp_path / "model")
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    with pytest.raises(BuildError, match="computes NaN or infinite states"):
        build_here(BuildConfig(model=str(tmp_path / "model"), corpus=(corpus,), out=tmp_path / "store", dims=8))
    assert not (tmp_path / "store").exists()
    # What was read is no reason to refuse another model.
    build_here(BuildConfig(model=str(model_of("llama")), corpus=(corpus,), out=tmp_path / "store", dims=8))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "model", "store"]
