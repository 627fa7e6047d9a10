"""Blending adds the weights of paths that agree and keeps to the budget and the vocabulary."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.drafting import Blend, ContextDrafter, Drafter, DraftRequest
from decoder_client.stats import GenerationStats
from dresd.draft_tree import ROOT, DraftTree
from tests.support.drafts import FixedDrafter

VOCAB = 4
paths = st.lists(st.lists(st.integers(-3, VOCAB + 3), min_size=1, max_size=6), max_size=6)


def blended(drafters: list[Drafter], *, nodes: int = 32, depth: int = 8) -> DraftTree:
    request = DraftRequest([0], torch.zeros(1), nodes, depth, GenerationStats())
    return Blend(drafters, vocab_size=VOCAB).propose(request)


def masses(tree: DraftTree) -> dict[tuple[int, ...], list[float]]:
    names: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        names.append((*(names[parent] if parent != ROOT else ()), token))
    return dict(zip(names, tree.masses.tolist(), strict=True))


def test_weights_add_up_where_paths_agree_by_source() -> None:
    tree = blended([FixedDrafter([[1, 2], [1, 3]], weight=0.5), FixedDrafter([[1, 2, 0]], weight=2.0)])
    assert masses(tree) == {(1,): [1.0, 2.0], (1, 2): [0.5, 2.0], (1, 2, 0): [0.0, 2.0], (1, 3): [0.5, 0.0]}


@given(paths, paths, st.integers(1, 20), st.integers(1, 8))
def test_trees_keep_to_budget_depth_and_vocabulary(
    one: list[list[int]], other: list[list[int]], nodes: int, depth: int
) -> None:
    tree = blended([FixedDrafter(one), FixedDrafter(other, weight=0.3)], nodes=nodes, depth=depth)
    assert len(tree) <= nodes
    assert tree.depths().max(initial=0) <= depth
    assert np.all((tree.tokens >= 0) & (tree.tokens < VOCAB))
    usable = {
        tuple(path[:end])
        for path in one + other
        for end in range(1, depth + 1)
        if end <= len(path) and all(0 <= token < VOCAB for token in path[:end])
    }
    assert set(masses(tree)) <= usable
    assert len(tree) == min(nodes, len(usable))


def test_without_proposals_there_is_no_draft() -> None:
    assert len(blended([])) == 0
    assert len(blended([ContextDrafter()])) == 0
    assert not Blend([], vocab_size=VOCAB)
