"""The merge against a naive trie, and what every draft tree must satisfy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresd.draft_tree import PAD, ROOT, DraftTree
from dresd.path_merging import merge_paths, merge_trees
from tests.support.drafts import paths_of

# Few tokens make prefixes shared; weights in eighths make every sum exact.
PATH = st.lists(st.integers(0, 3), max_size=5)
WEIGHTS = st.tuples(st.integers(0, 16), st.integers(0, 16))
QUERIES = st.lists(st.lists(st.tuples(PATH, WEIGHTS), max_size=12), min_size=1, max_size=4)

Prefix = tuple[int, ...]


def arrays(queries: list[list[tuple[list[int], tuple[int, int]]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    flat = [(number, path, weights) for number, paths in enumerate(queries) for path, weights in paths]
    rows = np.full((len(flat), 5), PAD, np.int32)
    for row, (_, path, _) in zip(rows, flat, strict=True):
        row[: len(path)] = path
    weights = np.array([weights for _, _, weights in flat], np.float64).reshape(-1, 2) / 8
    return np.array([number for number, _, _ in flat], np.int64), rows, weights


def naive_trie(paths: list[tuple[list[int], tuple[int, int]]]) -> dict[Prefix, tuple[float, float]]:
    masses: dict[Prefix, tuple[float, float]] = {}
    for path, (first, second) in paths:
        for end in range(1, len(path) + 1):
            before = masses.get(tuple(path[:end]), (0.0, 0.0))
            masses[tuple(path[:end])] = (before[0] + first / 8, before[1] + second / 8)
    return masses


def prefixes(tree: DraftTree) -> list[Prefix]:
    """Each node's path from the root; fails where a parent does not come before its child."""
    found: list[Prefix] = []
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        assert ROOT <= parent < node
        found.append((*(() if parent == ROOT else found[parent]), token))
    return found


def as_dict(tree: DraftTree) -> dict[Prefix, tuple[float, float]]:
    nodes = dict(zip(prefixes(tree), (tuple(masses) for masses in tree.masses.tolist()), strict=True))
    assert len(nodes) == len(tree)  # no prefix twice
    return nodes


@given(QUERIES)
def test_merging_equals_a_naive_trie(queries):
    trees = merge_paths(*arrays(queries), num_queries=len(queries), max_nodes=1000)
    assert [as_dict(tree) for tree in trees] == [naive_trie(paths) for paths in queries]


@given(QUERIES, st.integers(0, 8))
def test_pruning_keeps_the_top_masses_and_whole_prefixes(queries, max_nodes):
    trees = merge_paths(*arrays(queries), num_queries=len(queries), max_nodes=max_nodes)
    for tree, paths in zip(trees, queries, strict=True):
        reference = naive_trie(paths)
        kept = as_dict(tree)
        assert len(kept) == min(max_nodes, len(reference))
        assert kept.items() <= reference.items()
        assert all(prefix[:-1] in kept for prefix in kept if len(prefix) > 1)
        best = sorted((sum(masses) for masses in reference.values()), reverse=True)[:max_nodes]
        assert tree.masses.sum(axis=1).tolist() == best  # and so in falling order
        order = list(zip((-tree.masses.sum(axis=1)).tolist(), tree.depths().tolist(), strict=True))
        assert order == sorted(order)  # the shallower of equals first


@given(QUERIES, st.integers(1, 8))
def test_a_batch_equals_its_queries_one_by_one(queries, max_nodes):
    together = merge_paths(*arrays(queries), num_queries=len(queries), max_nodes=max_nodes)
    for tree, paths in zip(together, queries, strict=True):
        (alone,) = merge_paths(*arrays([paths]), num_queries=1, max_nodes=max_nodes)
        for field in ("tokens", "parents", "masses"):
            assert np.array_equal(getattr(tree, field), getattr(alone, field))


@given(QUERIES, st.randoms(use_true_random=False))
def test_the_order_of_paths_does_not_matter(queries, random):
    shuffled = [random.sample(paths, len(paths)) for paths in queries]
    for one, other in zip(
        merge_paths(*arrays(queries), num_queries=len(queries), max_nodes=1000),
        merge_paths(*arrays(shuffled), num_queries=len(queries), max_nodes=1000),
        strict=True,
    ):
        assert as_dict(one) == as_dict(other)


@given(QUERIES)
def test_a_tree_merges_back_from_its_own_paths(queries):
    for tree in merge_paths(*arrays(queries), num_queries=len(queries), max_nodes=1000):
        paths, weights = paths_of(tree)
        owners = np.zeros(len(paths), np.int64)
        (again,) = merge_paths(owners, paths, weights, num_queries=1, max_nodes=1000)
        assert as_dict(again) == as_dict(tree)


@given(QUERIES)
def test_trees_add(queries):
    """Merging the paths of several trees is merging everything they were made of."""
    trees = merge_paths(*arrays(queries), num_queries=len(queries), max_nodes=1000)
    parts = [paths_of(tree) for tree in trees]
    depth = max(paths.shape[1] for paths, _ in parts)
    paths = np.concatenate(
        [np.pad(paths, ((0, 0), (0, depth - paths.shape[1])), constant_values=PAD) for paths, _ in parts]
    )
    weights = np.concatenate([weights for _, weights in parts])
    (together,) = merge_paths(np.zeros(len(paths), np.int64), paths, weights, num_queries=1, max_nodes=1000)
    assert as_dict(together) == naive_trie([path for paths in queries for path in paths])


@given(QUERIES)
def test_depths_and_masks_follow_the_prefixes(queries):
    for tree in merge_paths(*arrays(queries), num_queries=len(queries), max_nodes=1000):
        paths = prefixes(tree)
        assert tree.depths().tolist() == [len(path) for path in paths]
        expected = [[one[: len(other)] == other for other in paths] for one in paths]
        assert np.array_equal(tree.ancestor_mask(), np.array(expected, np.bool_).reshape(len(tree), len(tree)))


@given(st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=30), st.integers(1, 30))
def test_rounding_never_puts_a_child_before_its_parent(weights, max_nodes):
    paths = np.array([[1, 2, index % 3, index] for index in range(len(weights))], np.int32)
    (tree,) = merge_paths(
        np.zeros(len(weights), np.int64), paths, np.array(weights)[:, None], num_queries=1, max_nodes=max_nodes
    )
    prefixes(tree)
    inner = tree.parents != ROOT
    assert (tree.masses[inner] <= tree.masses[tree.parents[inner]]).all()


@pytest.mark.parametrize(("num_paths", "depth", "max_nodes"), [(0, 5, 8), (3, 0, 8), (3, 5, 0)])
def test_nothing_gives_empty_trees(num_paths, depth, max_nodes):
    trees = merge_paths(
        np.zeros(num_paths, np.int64),
        np.ones((num_paths, depth), np.int32),
        np.ones((num_paths, 2)),
        num_queries=2,
        max_nodes=max_nodes,
    )
    assert [len(tree) for tree in trees] == [0, 0]
    assert all(tree.masses.shape == (0, 2) for tree in trees)
    assert DraftTree.empty().ancestor_mask().shape == (0, 0)


@given(QUERIES)
def test_trees_merge_into_the_tree_of_all_their_paths(queries):
    trees = merge_paths(*arrays(queries), num_queries=len(queries), max_nodes=1000)
    merged = merge_trees(trees, max_nodes=1000)
    assert as_dict(merged) == naive_trie([path for paths in queries for path in paths])


@given(QUERIES, st.integers(0, 8))
def test_merged_trees_keep_the_heaviest_nodes(queries, max_nodes):
    trees = merge_paths(*arrays(queries), num_queries=len(queries), max_nodes=1000)
    whole, pruned = as_dict(merge_trees(trees, 1000)), merge_trees(trees, max_nodes)
    assert len(pruned) == min(max_nodes, len(whole))
    kept = as_dict(pruned)
    assert kept.items() <= whole.items()
    assert sorted(map(sum, kept.values())) == sorted(map(sum, whole.values()))[len(whole) - len(kept) :]
