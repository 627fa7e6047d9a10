"""From token ids to entries: windows, and what surrounds a key."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dresd.draft_tree import PAD
from retriever_service.building.document import Document
from retriever_service.building.entries import LEFT_CONTEXT_LENGTH, entry_tokens


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


@given(some=st.lists(documents(), min_size=1, max_size=4), continuation_length=st.integers(1, 24))
def test_entries_are_cut_from_the_tokens_around_them(some: list[Document], continuation_length: int) -> None:
    entries = entry_tokens(some, continuation_length)
    expected = []
    for document in some:
        tokens, stored = document.tokens.tolist(), document.stored.tolist()
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
