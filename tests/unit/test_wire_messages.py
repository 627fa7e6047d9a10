from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.wire import WireError, drafts_of, request_message
from dresd.draft_tree import PAD, DraftTree, merge_paths
from dresd.v1 import retriever_pb2 as pb
from retriever_service.datastore import DraftBatch
from retriever_service.serving.messages import response_message

VOCAB = 40


@st.composite
def batches(draw: st.DrawFn) -> DraftBatch:
    queries = draw(st.integers(1, 4))
    rows = draw(st.lists(st.tuples(st.integers(0, queries - 1), st.lists(st.integers(0, VOCAB - 1), max_size=5))))
    paths = np.full((len(rows), 5), PAD, np.int32)
    for row, (_, path) in enumerate(rows):
        paths[row, : len(path)] = path
    owners = np.array([owner for owner, _ in rows], np.int64)
    weights = np.full((len(rows), 1), 0.5)
    trees = merge_paths(owners, paths, weights, num_queries=queries, max_nodes=draw(st.integers(1, 20)))
    counts = np.bincount(owners, minlength=queries).astype(np.int64)
    return DraftBatch(trees, counts * 0.5, np.minimum(counts, 1).astype(np.float32), counts, 1, 1, 7, 8)


@given(batches())
def test_drafts_survive_the_wire(batch: DraftBatch):
    message = pb.RetrieveResponse.FromString(response_message("build", batch, 3e-6).SerializeToString())
    drafts = drafts_of(message, num_queries=len(batch.trees), vocab_size=VOCAB)
    assert (message.timing.queue_us, message.timing.search_us, message.timing.merge_us) == (3, 7, 8)
    for draft, tree, mass, count in zip(drafts, batch.trees, batch.total_masses, batch.neighbor_counts, strict=True):
        assert draft.tree.tokens.tolist() == tree.tokens.tolist()
        assert draft.tree.parents.tolist() == tree.parents.tolist()
        np.testing.assert_array_equal(draft.tree.masses, tree.masses)
        assert (draft.tree.tokens.dtype, draft.tree.parents.dtype) == (np.int32, np.int32)
        assert (draft.total_mass, draft.neighbors) == (mass, count)


def test_a_request_carries_little_endian_rows():
    keys = np.arange(6, dtype=np.float16).reshape(3, 2).T  # not contiguous
    message = request_message("b", keys, [5, 6], neighbors=4, max_nodes=3, max_depth=2, temperature=0.5)
    assert np.frombuffer(message.keys, "<f2").reshape(2, 3).tolist() == keys.tolist()
    assert (message.num_queries, message.dims, list(message.next_tokens)) == (2, 3, [5, 6])
    assert message.key_type == pb.KEY_TYPE_FLOAT16


def good_tree() -> pb.DraftTree:
    return pb.DraftTree(tokens=[1, 2, 3], parents=[0, 1, 1], dense_masses=[3, 1, 1], dense_total_mass=4, neighbors=2)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda tree: tree.tokens.append(4), "4 tokens, 3 parents"),
        (lambda tree: tree.parents.pop(), "2 parents"),
        (lambda tree: tree.dense_masses.pop(), "2 masses"),
        (lambda tree: tree.tokens.__setitem__(1, VOCAB), "vocabulary"),
        (lambda tree: tree.tokens.__setitem__(1, 2**32 - 1), "vocabulary"),
        (lambda tree: tree.parents.__setitem__(1, 2), "before its parent"),
        (lambda tree: tree.parents.__setitem__(2, 2**32 - 1), "before its parent"),
        (lambda tree: tree.dense_masses.__setitem__(0, float("nan")), "mass"),
        (lambda tree: tree.dense_masses.__setitem__(0, -1.0), "mass"),
        (lambda tree: setattr(tree, "dense_total_mass", float("inf")), "mass"),
    ],
)
def test_what_is_no_tree_is_refused(spoil: Callable[[pb.DraftTree], None], says: str):
    tree = good_tree()
    assert len(drafts_of(pb.RetrieveResponse(trees=[tree]), num_queries=1, vocab_size=VOCAB)[0].tree) == 3
    spoil(tree)
    with pytest.raises(WireError, match=says):
        drafts_of(pb.RetrieveResponse(trees=[tree]), num_queries=1, vocab_size=VOCAB)


def test_a_missing_tree_is_refused():
    with pytest.raises(WireError, match="1 trees for 2 queries"):
        drafts_of(pb.RetrieveResponse(trees=[good_tree()]), num_queries=2, vocab_size=VOCAB)


def test_an_empty_tree_is_a_draft_of_nothing():
    (draft,) = drafts_of(pb.RetrieveResponse(trees=[pb.DraftTree()]), num_queries=1, vocab_size=VOCAB)
    assert len(draft.tree) == 0
    assert draft.tree.masses.shape == DraftTree.empty().masses.shape
