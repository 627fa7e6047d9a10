"""What a decoder's question looks like on the wire, and which questions are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decoder_client.handshake import Handshake
from decoder_client.query_batch import QueryBatch
from decoder_client.wire import Limits
from dresd.identity import KeyRecipe
from dresd.routing import RoutingTable
from dresd.token_table import TokenTable
from dresd.v1 import retriever_pb2 as pb
from tests.support.serving import DIMS, IDENTITY, fitted_reducer

HANDSHAKE = Handshake(
    service_version="1",
    collection="code",
    build_id="build",
    model=IDENTITY,
    key_recipe=KeyRecipe("last", "l2", DIMS, "ab"),
    continuation_length=6,
    left_context_length=3,
    num_entries=1,
    routing=RoutingTable(1, np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64)),
    served_partitions=frozenset([0]),
    limits=Limits(max_queries=2, max_neighbors=20, max_nodes=30),
    reducer=fitted_reducer(),
    token_table=TokenTable.empty(),
)


def batch(count: int = 2, **changes: object) -> QueryBatch:
    good = QueryBatch(
        keys=np.arange(count * DIMS, dtype=np.float16).reshape(DIMS, count).T,  # not contiguous
        next_tokens=list(range(5, 5 + count)),
        left_contexts=np.arange(4 * count, dtype=np.int32).reshape(4, count).T,
        neighbors=4,
        sparse_neighbors=3,
        max_nodes=7,
        max_depth=2,
        temperature=0.5,
        match_temperature=2.5,
    )
    return replace(good, **changes)


def test_a_request_carries_little_endian_rows():
    asked = batch()
    (message,) = asked.requests(HANDSHAKE)
    assert np.frombuffer(message.keys, "<f2").reshape(2, DIMS).tolist() == asked.keys.tolist()
    assert (message.num_queries, message.dims, list(message.next_tokens)) == (2, DIMS, [5, 6])
    assert (message.key_type, message.build_id, message.collection) == (pb.KEY_TYPE_FLOAT16, "build", "code")
    # The datastore stores three tokens of the four.
    assert message.left_context_width == 3
    assert np.frombuffer(message.left_contexts, "<i4").reshape(2, 3).tolist() == [[0, 2, 4], [1, 3, 5]]
    assert (message.neighbors, message.sparse_neighbors, message.max_nodes, message.max_depth) == (4, 3, 7, 2)
    assert (message.similarity_temperature, message.match_temperature) == (0.5, 2.5)


def test_a_batch_larger_than_a_request_may_be_is_split():
    asked = batch(5)
    messages = list(asked.requests(HANDSHAKE))
    assert [message.num_queries for message in messages] == [2, 2, 1]
    assert [token for message in messages for token in message.next_tokens] == asked.next_tokens
    contexts = [np.frombuffer(message.left_contexts, "<i4").reshape(-1, 3) for message in messages]
    assert np.concatenate(contexts).tolist() == asked.left_contexts[:, :3].tolist()


def test_nothing_asks_for_more_than_the_limits():
    (message,) = batch(neighbors=10**6, sparse_neighbors=10**6, max_nodes=10**6, max_depth=99).requests(HANDSHAKE)
    assert (message.neighbors, message.sparse_neighbors, message.max_nodes, message.max_depth) == (20, 20, 30, 6)


@pytest.mark.parametrize("contexts", [None, np.zeros((2, 4), np.int32)])
def test_without_sparse_neighbours_no_context_is_sent(contexts: np.ndarray | None):
    (message,) = batch(sparse_neighbors=0, left_contexts=contexts).requests(HANDSHAKE)
    assert (message.left_contexts, message.left_context_width, message.sparse_neighbors) == (b"", 0, 0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"next_tokens": [1]}, "1 next tokens"),
        ({"keys": np.zeros(DIMS, np.float16)}, "keys of shape"),
        ({"left_contexts": np.zeros((3, 4), np.int32)}, "left_contexts of"),
        ({"left_contexts": np.zeros(2, np.int32)}, "left_contexts of"),
        ({"left_contexts": np.zeros((2, 4), np.int64)}, "expected int32"),
        ({"left_contexts": None}, "are missing"),
        ({"neighbors": 0, "sparse_neighbors": 0}, "one of them above"),
        ({"neighbors": -1}, "at least 0"),
        ({"sparse_neighbors": -1}, "at least 0"),
    ],
)
def test_what_is_no_batch_is_the_callers_error(changes: dict[str, object], says: str):
    with pytest.raises(ValueError, match=says):
        batch(**changes)
