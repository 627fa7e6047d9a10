"""The order of work, and documents on disk: everything once, equal ones left out, little padding, read by number."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from retriever_service.building.document import Document
from retriever_service.building.documents import ShardWriter, content_hash
from retriever_service.building.embed import batches
from retriever_service.building.plan import Plan, first_of_equals, make_plan
from retriever_service.building.planning import Planned

VOCABULARY = 9


@st.composite
def documents(draw: st.DrawFn) -> Document:
    """Short ones of few tokens, so that some are equal."""
    stored = draw(st.lists(st.booleans(), min_size=1, max_size=3))
    tokens = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=len(stored), max_size=len(stored)))
    return Document(np.array(tokens, np.int32), np.array([False, *stored[1:]], np.bool_))


def commit(folder: Path, shards: list[list[Document]]) -> tuple[Path, ...]:
    paths = []
    for number, shard in enumerate(shards):
        writer = ShardWriter()
        for document in shard:
            writer.add(document, identity=content_hash(document), text=f"text of {document.tokens.tolist()}")
        paths.append(folder / f"{number}.block")
        writer.commit(paths[-1], {"number": number})
    return tuple(paths)


@settings(max_examples=50, deadline=None)
@given(shards=st.lists(st.lists(documents(), max_size=6), min_size=1, max_size=5), sample=st.integers(0, 9))
def test_planned_documents_are_those_committed_without_their_equals(shards: list[list[Document]], sample: int) -> None:
    with TemporaryDirectory() as folder:
        planned = Planned(Path(folder, "plan.block"), commit(Path(folder), shards))
        totals = planned.make(vocab_size=VOCABULARY, sample_entries=sample, seed=3)
        plan, read = planned.load()
        found = [read[number] for block in range(plan.num_blocks) for number in plan.documents(block).tolist()]
        texts = [read.text(number) for number in plan.order.tolist()]
        again, tokens, counts = planned.totals(), planned.block_tokens(), planned.token_counts()
    everything = [document for shard in shards for document in shard]
    identities = [content_hash(document) for document in found]
    assert sorted(identities) == sorted({content_hash(document) for document in everything})
    assert texts == [f"text of {document.tokens.tolist()}" for document in found]
    assert totals.duplicates == len(everything) - len(found)
    assert totals == again
    assert (totals.documents, totals.blocks, totals.sample_blocks) == (len(found), plan.num_blocks, plan.sample_blocks)
    assert totals.tokens == tokens.sum() == sum(len(document.tokens) for document in found)
    stored = [int(token) for document in found for token in document.tokens[document.stored]]
    assert totals.entries == len(stored)
    assert counts.tolist() == np.bincount(stored, minlength=VOCABULARY).tolist()


def planned_of(sizes: list[int], *, sample_entries: int = 0, **options: int) -> tuple[Plan, NDArray[np.int64]]:
    lengths = np.array(sizes, np.int64)
    kept = np.ones(len(sizes), np.bool_)
    return make_plan(lengths, lengths - 1, kept, sample_entries=sample_entries, **{"seed": 0, **options}), lengths


@given(
    sizes=st.lists(st.integers(2, 3000), min_size=1, max_size=60),
    sample_entries=st.integers(1, 20_000),
    seed=st.integers(0, 9),
)
def test_a_plan_holds_every_document_once_and_a_large_enough_sample(
    sizes: list[int], sample_entries: int, seed: int
) -> None:
    plan, lengths = planned_of(sizes, sample_entries=sample_entries, seed=seed)
    assert sorted(plan.order.tolist()) == list(range(len(sizes)))
    sample = plan.order[: plan.offsets[plan.sample_blocks]]
    entries = lengths - 1
    assert entries[sample].sum() >= min(sample_entries, int(entries.sum()))
    # With any document less it would be too small, or that one was the last drawn.
    assert entries[sample].sum() - entries[sample].max() < sample_entries
    parts = [plan.documents(block) for block in range(plan.num_blocks)]
    assert np.concatenate(parts).tolist() == plan.order.tolist()
    assert plan.tokens.tolist() == [int(lengths[part].sum()) for part in parts]
    assert np.diff(plan.first_entries).tolist() == [int(entries[part].sum()) for part in parts]
    groups = [plan.blocks_of(group) for group in range(len(plan.groups) - 1)]
    assert [block for group in groups for block in group] == list(range(plan.num_blocks))


def test_blocks_are_many_and_hardly_padded() -> None:
    sizes = np.random.default_rng(0).integers(20, 600, 4000).tolist()
    plan, lengths = planned_of(sizes, sample_entries=30_000)
    assert 100 <= plan.num_blocks <= 200
    padded = 0
    for block in range(plan.num_blocks):
        inside = lengths[plan.documents(block)].tolist()
        for batch in batches(inside, 2048):
            longest = max(inside[at] for at in batch)
            padded += longest * len(batch)
            assert longest * len(batch) <= 2048
    assert sum(sizes) / padded > 0.97


@given(lengths=st.lists(st.integers(1, 50), max_size=30), budget=st.integers(1, 120))
def test_batches_keep_the_order_and_the_budget(lengths: list[int], budget: int) -> None:
    found = list(batches(lengths, budget))
    assert [number for batch in found for number in batch] == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or max(lengths[number] for number in batch) * len(batch) <= budget


def test_prompts_of_similar_length_are_answered_together() -> None:
    plan, lengths = planned_of([3, 50] * 100, block_documents=64)
    parts = [plan.documents(block).tolist() for block in range(plan.num_blocks)]
    assert sorted(number for part in parts for number in part) == list(range(200))
    assert max(map(len, parts)) == 64
    assert sum(len({int(lengths[number]) for number in part}) > 1 for part in parts) <= 1


@given(numbers=st.lists(st.integers(0, 5), max_size=40))
def test_the_first_of_equals_is_kept(numbers: list[int]) -> None:
    hashes = np.zeros((len(numbers), 16), np.uint8)
    hashes[:, 11] = numbers
    expected = [number not in numbers[:at] for at, number in enumerate(numbers)]
    assert first_of_equals(hashes).tolist() == expected
