from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.wire import WireError, drafts_of
from dresd.draft_tree import PAD, DraftTree
from dresd.path_merging import merge
from dresd.v1 import retriever_pb2 as pb
from retriever_service.datastore import DraftBatch
from retriever_service.serving.messages import fill_response

VOCAB = 40
LARGE_VOCAB = 2**31 - 1
TOKENS = st.integers(0, VOCAB - 1) | st.sampled_from([127, 128, 16_383, 16_384, LARGE_VOCAB - 1])


def asked(queries: int, *, max_nodes: int = 20, max_depth: int = 0) -> pb.RetrieveRequest:
    return pb.RetrieveRequest(num_queries=queries, max_nodes=max_nodes, max_depth=max_depth)


@st.composite
def batches(draw: st.DrawFn) -> DraftBatch:
    queries = draw(st.integers(1, 4))
    rows = draw(st.lists(st.tuples(st.integers(0, queries - 1), st.lists(TOKENS, max_size=16))))
    paths = np.full((len(rows), 16), PAD, np.int32)
    for row, (_, path) in enumerate(rows):
        paths[row, : len(path)] = path
    owners = np.array([owner for owner, _ in rows], np.int64)
    sources = np.array([draw(st.sampled_from([0, 1])) for _ in rows], np.int64)
    weights = np.eye(2)[sources] * 0.5
    trees = merge(owners, paths, weights, queries, draw(st.integers(1, 300)))
    counts = np.zeros((queries, 2), np.int64)
    np.add.at(counts, (owners, sources), 1)
    found = np.minimum(counts, 1)
    return DraftBatch(*trees, counts * 0.5, found[:, 0].astype(np.float32), found[:, 1] * 9, counts, 1, 1, 7, 8)


@given(batches())
def test_drafts_survive_the_wire(batch: DraftBatch):
    message = pb.RetrieveResponse()
    fill_response(message, "build", "build", batch, 3e-6)
    drafts = drafts_of(message, asked(len(batch.trees), max_nodes=300), vocab_size=LARGE_VOCAB)
    assert (message.timing.queue_us, message.timing.search_us, message.timing.merge_us) == (3, 7, 8)
    for query, draft in enumerate(drafts):
        tree = batch.trees[query]
        assert draft.tree.tokens.tolist() == tree.tokens.tolist()
        assert draft.tree.parents.tolist() == tree.parents.tolist()
        np.testing.assert_array_equal(draft.tree.masses, tree.masses)
        assert (draft.tree.tokens.dtype, draft.tree.parents.dtype) == (np.int32, np.int32)
        np.testing.assert_array_equal(draft.total_masses, batch.total_masses[query])
        assert draft.neighbors == tuple(batch.neighbor_counts[query].tolist())
        assert draft.best_similarity == batch.best_similarities[query]
        assert draft.longest_match == batch.longest_matches[query]


def test_an_answer_without_sparse_masses_has_none():
    tree = good_tree()
    tree.ClearField("sparse_masses")
    (draft,) = drafts_of(pb.RetrieveResponse(trees=[tree]), asked(1), vocab_size=VOCAB)
    assert draft.tree.masses.tolist() == [[3, 0], [1, 0], [1, 0]]


def good_tree() -> pb.DraftTree:
    return pb.DraftTree(
        tokens=[1, 2, 3],
        parents=[0, 1, 1],
        dense_masses=[3, 1, 1],
        dense_total_mass=4,
        neighbors=2,
        sparse_masses=[1, 0, 1],
        sparse_total_mass=1,
        sparse_neighbors=1,
    )


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda tree: tree.tokens.append(4), "4 tokens, 3 parents"),
        (lambda tree: tree.parents.pop(), "2 parents"),
        (lambda tree: tree.dense_masses.pop(), "2 and 3 masses"),
        (lambda tree: tree.sparse_masses.pop(), "3 and 2 masses"),
        (lambda tree: tree.ClearField("dense_masses"), "0 and 3 masses"),
        (lambda tree: tree.tokens.__setitem__(1, VOCAB), "vocabulary"),
        (lambda tree: tree.tokens.__setitem__(1, 2**32 - 1), "vocabulary"),
        (lambda tree: tree.parents.__setitem__(1, 2), "before its parent"),
        (lambda tree: tree.parents.__setitem__(2, 2**32 - 1), "before its parent"),
        (lambda tree: tree.dense_masses.__setitem__(0, float("nan")), "mass"),
        (lambda tree: tree.dense_masses.__setitem__(0, -1.0), "mass"),
        (lambda tree: tree.sparse_masses.__setitem__(0, float("inf")), "mass"),
        (lambda tree: tree.sparse_masses.__setitem__(2, -1.0), "mass"),
        (lambda tree: setattr(tree, "dense_total_mass", float("inf")), "mass"),
        (lambda tree: setattr(tree, "sparse_total_mass", float("nan")), "mass"),
        (lambda tree: setattr(tree, "sparse_total_mass", -1.0), "mass"),
    ],
)
def test_what_is_no_tree_is_refused(spoil: Callable[[pb.DraftTree], None], says: str):
    tree = good_tree()
    assert len(drafts_of(pb.RetrieveResponse(trees=[tree]), asked(1), vocab_size=VOCAB)[0].tree) == 3
    spoil(tree)
    with pytest.raises(WireError, match=says):
        drafts_of(pb.RetrieveResponse(trees=[tree]), asked(1), vocab_size=VOCAB)


def test_a_missing_tree_is_refused():
    with pytest.raises(WireError, match="1 trees for 2 queries"):
        drafts_of(pb.RetrieveResponse(trees=[good_tree()]), asked(2), vocab_size=VOCAB)


@pytest.mark.parametrize("limits", [{"max_nodes": 2}, {"max_depth": 1}])
def test_a_tree_larger_than_asked_for_is_refused(limits: dict[str, int]):
    """It would cost memory and time that nobody wants to spend."""
    with pytest.raises(WireError, match="asked for"):
        drafts_of(pb.RetrieveResponse(trees=[good_tree()]), asked(1, **limits), vocab_size=VOCAB)


def test_an_empty_tree_is_a_draft_of_nothing():
    (draft,) = drafts_of(pb.RetrieveResponse(trees=[pb.DraftTree()]), asked(1), vocab_size=VOCAB)
    assert len(draft.tree) == 0
    assert draft.tree.masses.shape == DraftTree.empty(2).masses.shape
