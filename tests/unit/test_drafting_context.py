"""Prompt lookup proposes what really followed the longest earlier match, however the text grew."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.drafting import ContextDrafter, DraftRequest
from decoder_client.drafting.context import MATCH_WEIGHTS
from decoder_client.stats import GenerationStats
from dresd.draft_tree import PAD

texts = st.lists(st.integers(0, 2), min_size=1, max_size=60)


def ask(drafter: ContextDrafter, text: list[int], depth: int = 5) -> list[tuple[list[int], float]]:
    """The proposed paths, without padding, and their weights."""
    proposal = drafter.propose(DraftRequest(text, torch.zeros(1), 8, depth, GenerationStats()))
    if proposal is None:
        return []
    paths = [[token for token in path if token != PAD] for path in proposal.paths.tolist()]
    return list(zip(paths, proposal.weights.tolist(), strict=True))


def match_length(text: list[int], end: int) -> int:
    """How many tokens up to position `end` equal those at the end of the text, as far as weights distinguish."""
    length = 0
    while length < min(len(MATCH_WEIGHTS), end + 1) and text[end - length] == text[-1 - length]:
        length += 1
    return length


@given(texts)
def test_paths_are_what_followed_the_longest_matches(text: list[int]) -> None:
    lengths = {end: n for end in range(len(text) - 1) if (n := match_length(text, end))}
    best = sorted(lengths, key=lambda end: (-lengths[end], -end))[:3]
    expected = [(text[end + 1 : end + 6], MATCH_WEIGHTS[lengths[end] - 1]) for end in best]
    assert ask(ContextDrafter(max_paths=3), text) == expected


@given(texts, st.data())
def test_a_text_that_grows_is_looked_up_like_one_given_at_once(text: list[int], data: st.DataObject) -> None:
    growing = ContextDrafter()
    for length in sorted(data.draw(st.sets(st.integers(1, len(text)), max_size=5))):
        ask(growing, text[:length])
    assert ask(growing, text) == ask(ContextDrafter(), text)


def test_another_sequence_starts_without_the_memory_of_the_last() -> None:
    drafter = ContextDrafter()
    assert ask(drafter, [1, 2, 3, 1]) != []
    drafter.begin()
    assert ask(drafter, [4, 5, 2]) == []


def test_weights_grow_with_the_match() -> None:
    assert list(MATCH_WEIGHTS) == sorted(MATCH_WEIGHTS)
    assert np.all(np.array(MATCH_WEIGHTS) > 0)
