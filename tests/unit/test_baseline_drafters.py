"""Published drafters against plain re-tellings of their papers: slow, obvious, and written independently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoder_client.drafting.drafter import LikelyTokens, Outcome
from decoder_client.evaluation.baselines import dresd_paper, rest, token_recycling
from decoder_client.evaluation.baselines.dresd_paper import DresdPaper, PaperSession
from decoder_client.evaluation.baselines.prompt_lookup import PromptLookup
from decoder_client.evaluation.baselines.rest import Rest, SuffixArray
from decoder_client.evaluation.baselines.token_recycling import TokenRecycling, template
from decoder_client.evaluation.baselines.trees import arranged
from dresd.draft_tree import PAD, ROOT, DraftTree
from tests.support.drafts import trees
from tests.support.evaluation import paths_in, request_of

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)
budgets = st.integers(1, 12)


def prefixes_of(paths: Sequence[Sequence[int]]) -> set[tuple[int, ...]]:
    return {tuple(path[:length]) for path in paths for length in range(1, len(path) + 1)}


# Prompt lookup


def looked_up(text: list[int], nodes: int, depth: int) -> list[int]:
    for length in (3, 2, 1):
        run = text[-length:]
        for start in range(len(text) - length - 1, -1, -1):
            if len(run) == length and text[start : start + length] == run:
                return text[start + length :][: min(10, nodes, depth)]
    return []


@settings(max_examples=100, deadline=None)
@given(texts, budgets, budgets, st.integers(1, 40))
def test_prompt_lookup_takes_the_latest_longest_match(text: list[int], nodes: int, depth: int, at: int) -> None:
    drafter = PromptLookup()
    session = drafter.start(text[:1])
    for end in sorted({min(at, len(text)), len(text)}):  # what was indexed for an earlier step must not differ
        (tree,) = drafter.propose([request_of(text[:end], session, nodes=nodes, depth=depth)])
        assert tree.tokens.tolist() == looked_up(text[:end], nodes, depth)
        assert tree.parents.tolist() == list(range(-1, len(tree) - 1))


# REST

documents = st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=6)


def occurrences(store: list[list[int]], run: list[int]) -> list[list[int]]:
    """What follows the run wherever it stands."""
    return [
        document[start + len(run) :]
        for document in store
        for start in range(len(document) - len(run) + 1)
        if document[start : start + len(run)] == run
    ]


@settings(max_examples=100, deadline=None)
@given(documents, texts)
def test_a_suffix_array_finds_every_run_and_nothing_else(store: list[list[int]], run: list[int]) -> None:
    array = SuffixArray(store)
    for length in range(1, len(run) + 1):
        hits = array.find(run[:length])
        assert len(hits) == len(occurrences(store, run[:length]))
        assert all(array.tokens[hit : hit + length].tolist() == run[:length] for hit in hits)


@settings(max_examples=150, deadline=None)
@given(documents, texts, st.integers(1, 80), budgets)
def test_rest_keeps_the_most_frequent_continuations_of_the_longest_suffix(
    store: list[list[int]], text: list[int], nodes: int, depth: int
) -> None:
    (tree,) = Rest(SuffixArray(store)).propose([request_of(text, nodes=nodes, depth=depth)])
    followers = next((found for n in range(min(16, len(text)), 1, -1) if (found := occurrences(store, text[-n:]))), [])
    counts = Counter(tuple(follower[:n]) for follower in followers for n in range(1, min(10, depth, len(follower)) + 1))
    kept = paths_in(tree)
    assert len(kept) == len(tree) == min(nodes, 64, len(counts))
    assert kept <= counts.keys()
    dropped = [count for path, count in counts.items() if path not in kept]
    assert min((counts[path] for path in kept), default=0) >= max(dropped, default=0)


def test_rest_scans_large_stores_and_large_tokens() -> None:
    large = 2**31 - 2
    store = [[7, 8, large, 1], *[[5, 6, n % 70] for n in range(rest.MAX_HITS + 100)]]
    drafter = Rest(SuffixArray(store))
    (tree,) = drafter.propose([request_of([1, 7, 8])])
    assert paths_in(tree) == {(large,), (large, 1)}
    (tree,) = drafter.propose([request_of([5, 6], nodes=100)])
    assert len(tree) == rest.MAX_NODES


def test_continuations_end_with_their_document() -> None:
    drafter = Rest(SuffixArray([[1, 2, 3], [4, 5, 6], [1, 2]]))
    (tree,) = drafter.propose([request_of([1, 2])])
    assert paths_in(tree) == {(3,)}
    (tree,) = drafter.propose([request_of([9, 2, 3])])
    assert len(tree) == 0


# DReSD as published

entries = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), max_size=16)), max_size=50)


@settings(max_examples=100, deadline=None)
@given(entries, st.integers(0, 2), st.integers(1, 16))
def test_published_dresd_filters_its_neighbours_afterwards(
    nearest: list[tuple[int, list[int]]], newest: int, depth: int
) -> None:
    next_tokens = np.array([token for token, _ in nearest], np.int64)
    continuations = np.full((len(nearest), 16), PAD, np.int32)
    for row, (_, path) in zip(continuations, nearest, strict=True):
        row[: len(path)] = path
    drafter = DresdPaper(lambda _state: (next_tokens, continuations))
    session = drafter.start([1])
    (tree,) = drafter.propose([request_of([3, newest], session, nodes=1, depth=depth)])
    drafts = [path[: min(10, depth)] for token, path in nearest if token == newest][:10]
    assert paths_in(tree) == prefixes_of(drafts)
    assert drafter.verified(session) == len(drafts) * min(10, depth)


def test_published_dresd_verifies_up_to_a_hundred_tokens() -> None:
    assert (dresd_paper.NEIGHBORS, dresd_paper.NUM_DRAFTS * dresd_paper.DRAFT_TOKENS) == (50, 100)
    same = np.tile(np.arange(16, dtype=np.int32), (50, 1))
    drafter = DresdPaper(lambda _state: (np.full(50, 4), same))
    session = PaperSession()
    (tree,) = drafter.propose([request_of([4], session)])
    # Ten identical rows are verified; merged they are one path.
    assert (drafter.verified(session), tree.tokens.tolist()) == (100, list(range(10)))


# Token Recycling


def read(contexts: Sequence[int], likely: Sequence[Sequence[int]]) -> Outcome:
    rows = LikelyTokens(
        np.array([[0, token] for token in contexts], np.int64),
        np.array(likely, np.int64),
        np.zeros((len(contexts), 8), np.float32),
    )
    return Outcome([1], 1, DraftTree.empty(), [], request_of([1]).state[None], lambda **_: rows)


def test_the_template_is_a_tree_of_the_likeliest_nodes() -> None:
    parents, ranks, probabilities = template()
    assert len(parents) == token_recycling.TEMPLATE_NODES == 80
    assert all(parent < node for node, parent in enumerate(parents.tolist()))
    assert (np.diff(probabilities) <= 0).all()
    assert len(set(zip(parents.tolist(), ranks.tolist(), strict=True))) == 80
    tree = arranged(ranks.tolist(), parents.tolist(), probabilities.tolist(), 99)
    assert tree.depths().max() == 6


def test_token_recycling_unrolls_what_it_saw_last() -> None:
    drafter = TokenRecycling(vocab_size=100)
    assert len(drafter.propose([request_of([5])])[0]) == 0
    fan = [list(range(10 * n, 10 * n + 8)) for n in range(10)]
    drafter.observe(None, read([5, 10, 5], [fan[9], fan[2], fan[1]]))  # the later row of 5 stays
    (tree,) = drafter.propose([request_of([1, 5], nodes=80)])
    paths = paths_in(tree)
    assert (10,) in paths
    assert (10, 20) in paths  # 10 is the likeliest after 5, 20 the likeliest after 10
    assert {path[0] for path in paths} <= set(fan[1])
    assert max(map(len, paths)) == 2  # nothing is known of the rest
    drafter.start([1, 2, 3])  # another prompt: what was learned stays
    assert paths_in(drafter.propose([request_of([5], nodes=80)])[0]) == paths


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.integers(1, 8))
def test_token_recycling_keeps_to_budget_and_depth(seed: int, nodes: int, depth: int) -> None:
    random = np.random.default_rng(seed)
    drafter = TokenRecycling(vocab_size=8)
    known = random.choice(8, size=5, replace=False)
    drafter.observe(None, read(known.tolist(), [random.permutation(8).tolist() for _ in known]))
    (tree,) = drafter.propose([request_of([int(known[0])], nodes=nodes, depth=depth)])
    assert 1 <= len(tree) <= min(nodes, 80)
    assert tree.depths().max() <= min(depth, 6)
    assert len(paths_in(tree)) == len(tree)  # siblings differ
    assert (np.diff(tree.masses[:, 0]) <= 0).all()


# Trees


@settings(max_examples=60, deadline=None)
@given(trees(4), st.integers(1, 6))
def test_a_tree_cut_at_a_depth_keeps_all_above_it(tree: DraftTree, depth: int) -> None:
    cut = arranged(tree.tokens.tolist(), tree.parents.tolist(), tree.masses[:, 0].tolist(), depth)
    assert paths_in(cut) == {path for path in paths_in(tree) if len(path) <= depth}
    assert all(parent == ROOT or parent < node for node, parent in enumerate(cut.parents.tolist()))


@pytest.mark.parametrize(
    "drafter",
    [PromptLookup(), Rest(SuffixArray([[1, 2, 3]])), TokenRecycling(9)],
    ids=lambda one: type(one).__name__,
)
def test_several_sequences_are_answered_in_order(drafter: PromptLookup | Rest | TokenRecycling) -> None:
    asked = [request_of(text, drafter.start(text)) for text in ([1, 2, 1], [1], [9, 1, 2])]
    together = drafter.propose(asked)
    assert [paths_in(tree) for tree in together] == [paths_in(drafter.propose([one])[0]) for one in asked]
    assert any(len(tree) for tree in together) or isinstance(drafter, TokenRecycling)
