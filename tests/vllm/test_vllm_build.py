"""A datastore built through vLLM is that built through transformers: the same answers, and as good as the same keys."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from retriever_service.building.config import BuildConfig
from retriever_service.building.document import Document
from retriever_service.building.engines import TargetEngine, make_engine
from retriever_service.datastore import Datastore, verify
from retriever_service.datastore.stored import entries_at
from tests.support.evaluation import MAX_NEW_TOKENS, TinyWorld
from tests.support.in_process_jobs import build_here
from tests.support.vllm_engine import some_prompts


@dataclass(frozen=True)
class Built:
    datastore: Path
    answers: list[dict[str, object]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "prompts.jsonl"
    prompts = [*some_prompts(9), *some_prompts(3, length=40)]
    file.write_text("".join(json.dumps({"prompt_ids": prompt}) + "\n" for prompt in prompts))
    return file


@pytest.fixture(scope="module")
def built(world: TinyWorld, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """By both engines; the second makes keys with the first one's reducer, or they could be turned about."""
    folder = tmp_path_factory.mktemp("built")
    return {
        name: _build(world, corpus, folder / name, name, reducer_of)
        for name, reducer_of in (("transformers", None), ("vllm", folder / "transformers"))
    }


def _build(world: TinyWorld, corpus: Path, out: Path, engine: str, reducer_of: Path | None) -> Built:
    answers = out.with_suffix(".jsonl")
    config = BuildConfig(
        model=str(world.model),
        corpus=(corpus,),
        out=out,
        dims=8,
        codec="flat",
        respond=True,
        prompt_keys=True,
        engine=engine,
        max_new_tokens=MAX_NEW_TOKENS,
        answers_out=answers,
        reducer_of=reducer_of,
    )
    build_here(config)
    verify(out)
    return Built(out, [json.loads(line) for line in answers.read_text().splitlines()])


def test_answers_are_the_same(built: dict[str, Built]) -> None:
    assert built["vllm"].answers == built["transformers"].answers


def test_entries_are_the_same_and_keys_nearly(built: dict[str, Built]) -> None:
    entries = {}
    for name, one in built.items():
        store = Datastore.open(one.datastore)
        entries[name] = entries_at(store, np.arange(store.manifest.num_entries))
    one, other = entries["transformers"], entries["vllm"]
    # The order within a list may be another where keys differ in their last digits.
    order = [np.lexsort((*each.left_contexts.T, each.next_tokens)) for each in (one, other)]
    for field in ("next_tokens", "left_contexts", "continuations"):
        assert (getattr(one, field)[order[0]] == getattr(other, field)[order[1]]).all()
    cosines = (one.keys[order[0]] * other.keys[order[1]]).sum(axis=1)
    assert cosines.min() > 0.999


@pytest.fixture(scope="module")
def engines(world: TinyWorld) -> dict[str, TargetEngine]:
    return {name: make_engine(name, str(world.model), 1) for name in ("transformers", "vllm")}


def test_states_and_likely_tokens_are_those_of_transformers(engines: dict[str, TargetEngine]) -> None:
    """Documents of all lengths, together more than one pass reads, some with parts that are not stored."""
    random = np.random.default_rng(5)
    documents = [
        Document.of(text[: length // 3], text[length // 3 :], prompt_keys=False)
        for length in random.integers(2, 128, 90)
        for text in [random.integers(0, 97, length).tolist()]
    ]
    chosen = random.random(sum(int(document.stored.sum()) for document in documents)) < 0.3
    one, other = (engines[name].embed(documents, None, chosen) for name in ("transformers", "vllm"))
    assert np.allclose(one.vectors, other.vectors, atol=1e-4)
    assert (one.current == other.current).all()
    assert (one.previous == other.previous).all()
    assert np.allclose(one.top_probabilities, other.top_probabilities, atol=1e-5)
    assert (one.top_tokens[:, 0] == other.top_tokens[:, 0]).mean() > 0.999


def test_sampled_answers_come_again_with_their_seed_and_differ_otherwise(engines: dict[str, TargetEngine]) -> None:
    def answers(seed: int) -> list[list[int]]:
        return engines["vllm"].answer(some_prompts(1) * 4, max_new_tokens=12, temperature=1.0, seed=seed)

    first = answers(1)
    assert answers(1) == first
    assert answers(2) != first
    assert len(set(map(tuple, first))) == 4


def test_this_python_has_vllm() -> None:
    """Or the tests of engines that do not start, elsewhere, are of something else."""
    assert "vllm" in sys.modules
