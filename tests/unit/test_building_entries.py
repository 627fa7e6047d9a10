"""From token ids to entries: windows, what surrounds a key, the order of work, and documents on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dresd.draft_tree import PAD
from retriever_service.building.document import Document
from retriever_service.building.entries import LEFT_CONTEXT_LENGTH, entry_tokens
from retriever_service.building.plan import make_plan, prompt_blocks
from retriever_service.building.spool import DocumentSpool, DocumentWriter


@st.composite
def documents(draw: st.DrawFn, max_size: int = 60) -> Document:
    """Tokens that tell their position, and any marks but at the first."""
    stored = draw(st.lists(st.booleans(), min_size=1, max_size=max_size))
    return Document(np.arange(100, 100 + len(stored), dtype=np.int32), np.array([False, *stored[1:]], np.bool_))


def test_a_prompt_is_context_and_its_answer_is_stored() -> None:
    document = Document.of([5, 6], [7, 8])
    assert document.tokens.tolist() == [5, 6, 7, 8]
    assert document.stored.tolist() == [False, False, True, True]
    assert Document.of([5, 6], [7, 8], prompt_keys=True).stored.tolist() == [False, True, True, True]
    # Nothing precedes the first token of a text, so nothing can predict it.
    assert Document.of([], [7, 8]).stored.tolist() == [False, True]


@given(document=documents(), continuation_length=st.integers(1, 8))
def test_entries_are_cut_from_the_tokens_around_them(document: Document, continuation_length: int) -> None:
    entries = entry_tokens(document, continuation_length)
    tokens, stored = document.tokens.tolist(), document.stored.tolist()
    expected = []
    for at in (position for position, is_stored in enumerate(stored) if is_stored):
        end = at
        while end + 1 < len(stored) and stored[end + 1]:
            end += 1
        following = tokens[at + 1 : end + 1][:continuation_length]
        preceding = tokens[:at][::-1][:LEFT_CONTEXT_LENGTH]
        expected.append(
            (
                tokens[at],
                following + [PAD] * (continuation_length - len(following)),
                preceding + [PAD] * (LEFT_CONTEXT_LENGTH - len(preceding)),
            )
        )
    rows = zip(
        entries.next_tokens.tolist(), entries.continuations.tolist(), entries.left_contexts.tolist(), strict=True
    )
    assert list(rows) == expected


@given(document=documents(), length=st.integers(2, 40))
def test_windows_store_every_stored_token_once(document: Document, length: int) -> None:
    windows = list(document.windows(length))
    assert all(len(window.tokens) <= length for window in windows)
    assert all(not window.stored[0] for window in windows)
    # Tokens tell their position here.
    found = [int(token) for window in windows for token in window.tokens[window.stored]]
    assert found == document.tokens[document.stored].tolist()
    assert len(windows) == 1 or len(document.tokens) > length


@settings(max_examples=25)
@given(st.lists(documents(max_size=9), min_size=1, max_size=8))
def test_spooled_documents_come_back(tmp_path_factory: object, written: list[Document]) -> None:
    folder = Path(tmp_path_factory.mktemp("spool")) / "documents"
    with DocumentWriter(folder) as writer:
        for document in written:
            writer.add(document)
    spool = DocumentSpool(folder)
    assert len(spool) == len(written)
    for number, document in enumerate(written):
        assert spool[number].tokens.tolist() == document.tokens.tolist()
        assert spool[number].stored.tolist() == document.stored.tolist()
    assert spool.entries.tolist() == [int(document.stored.sum()) for document in written]
    stored = np.concatenate([document.tokens[document.stored] for document in written])
    assert spool.token_counts(200).tolist() == np.bincount(stored, minlength=200).tolist()


@given(
    sizes=st.lists(st.integers(2, 3000), min_size=1, max_size=60),
    fit_tokens=st.integers(1, 20_000),
    seed=st.integers(0, 9),
)
def test_a_plan_holds_every_document_once_and_a_large_enough_sample(
    sizes: list[int], fit_tokens: int, seed: int
) -> None:
    lengths = np.array(sizes, np.int64)
    entries = lengths - 1
    plan = make_plan(lengths, entries, fit_tokens=fit_tokens, seed=seed)
    everything = [number for block in plan.blocks for number in block.documents]
    assert sorted(everything) == list(range(len(sizes)))
    sample = [number for block in plan.sample for number in block.documents]
    assert entries[sample].sum() >= min(fit_tokens, int(entries.sum()))
    # No document more than is needed.
    assert entries[sample[:-1]].sum() < fit_tokens
    assert [block.number for block in plan.blocks] == list(range(len(plan.blocks)))
    before = 0
    for block in plan.blocks:
        assert block.first_entry == before
        before += int(entries[list(block.documents)].sum())


def test_prompts_of_similar_length_are_answered_together() -> None:
    lengths = np.array([3, 50] * 100, np.int64)
    blocks = prompt_blocks(lengths)
    assert sorted(number for block in blocks for number in block.documents) == list(range(200))
    mixed = [block for block in blocks if len({int(lengths[number]) for number in block.documents}) > 1]
    assert len(mixed) <= 1
