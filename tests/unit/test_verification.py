"""Acceptance walks the target's own choices, whatever was drafted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from decoder_client.verification import accept
from dresd.draft_tree import ROOT, DraftTree
from tests.support.drafts import tree_of, trees

VOCAB = 3


def path_to(tree: DraftTree, node: int) -> list[int]:
    path = []
    while node != ROOT:
        path.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return path[::-1]


def some_target(seed: int) -> Callable[[list[int]], int]:
    """A target that chooses by everything before: it differs in every branch."""

    def next_token(text: list[int]) -> int:
        return hashlib.sha256(f"{seed}{text}".encode()).digest()[0] % VOCAB

    return next_token


@given(trees(VOCAB), st.integers(0, 10**6))
def test_tokens_are_those_of_plain_decoding(tree: DraftTree, seed: int) -> None:
    target = some_target(seed)
    accepted = accept(tree, lambda row, _: target(path_to(tree, row - 1)))
    plain: list[int] = []
    for _ in accepted.tokens:
        plain.append(target(plain))
    assert accepted.tokens == plain


@given(trees(VOCAB), st.integers(0, 10**6))
def test_accepted_nodes_are_the_longest_path_the_target_takes(tree: DraftTree, seed: int) -> None:
    target = some_target(seed)
    accepted = accept(tree, lambda row, _: target(path_to(tree, row - 1)))
    last = accepted.nodes[-1] if accepted.nodes else ROOT
    assert path_to(tree, last) == accepted.tokens[:-1]
    assert [int(tree.parents[node]) for node in accepted.nodes] == [ROOT, *accepted.nodes][:-1]
    assert accepted.last_row == last + 1
    on = [token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == last]
    assert accepted.tokens[-1] not in on


@given(trees(VOCAB), st.integers(0, 10**6))
def test_the_target_chooses_once_a_token_with_the_prefix_it_follows(tree: DraftTree, seed: int) -> None:
    target = some_target(seed)
    seen: list[tuple[int, list[int]]] = []

    def choose(row: int, before: list[int]) -> int:
        seen.append((row, list(before)))
        return target(before)

    accepted = accept(tree, choose)
    assert [row for row, _ in seen] == [0, *(node + 1 for node in accepted.nodes)]
    assert [before for _, before in seen] == [accepted.tokens[:i] for i in range(len(accepted.tokens))]


@given(trees(VOCAB), st.integers(0, 10**6), st.sets(st.integers(0, VOCAB - 1)))
def test_nothing_follows_an_end(tree: DraftTree, seed: int, ends: set[int]) -> None:
    target = some_target(seed)
    free = accept(tree, lambda _, before: target(before)).tokens
    cut = next((i + 1 for i, token in enumerate(free) if token in ends), len(free))
    assert accept(tree, lambda _, before: target(before), ends).tokens == free[:cut]


def test_an_empty_tree_gives_one_token() -> None:
    accepted = accept(DraftTree.empty(), lambda _row, _before: 7)
    assert (accepted.nodes, accepted.tokens, accepted.last_row) == ([], [7], 0)


def test_a_fully_right_draft_is_accepted_with_one_token_more() -> None:
    answer = [5, 5, 6, 9]
    accepted = accept(tree_of([[5, 6], [5, 5, 6], [6]]), lambda _, before: answer[len(before)])
    assert accepted.tokens == answer
    assert len(accepted.nodes) == 3
