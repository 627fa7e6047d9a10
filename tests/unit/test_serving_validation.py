from __future__ import annotations

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresd.v1 import retriever_pb2 as pb
from retriever_service.serving.config import Limits
from retriever_service.serving.validation import RefusedError, Served, check
from tests.support.serving import request_for

DIMS = 4
CONTEXT = 5
SERVED = Served(DIMS, 6, CONTEXT, Limits(max_queries=3, max_neighbors=20, max_nodes=30))


def unit_keys(count: int) -> np.ndarray:
    keys = np.random.default_rng(0).normal(size=(count, DIMS))
    return keys / np.linalg.norm(keys, axis=1, keepdims=True)


@pytest.mark.parametrize("float32", [False, True])
def test_a_good_request_passes_whole(float32: bool):
    keys = unit_keys(2)
    request = request_for(keys, [7, 2**32 - 1], float32=float32, nprobe=3, max_depth=2)
    queries = check(request, SERVED)
    np.testing.assert_allclose(queries.keys, keys, atol=1e-3)
    assert queries.keys.dtype == np.float32
    assert queries.next_tokens.tolist() == [7, 2**32 - 1]
    assert queries.next_tokens.dtype == np.int64
    assert (queries.neighbors, queries.max_nodes, queries.max_depth, queries.nprobe) == (10, 16, 2, 3)


def test_defaults_of_the_datastore_fill_in():
    queries = check(request_for(unit_keys(1), [7]), SERVED)
    assert (queries.max_depth, queries.nprobe) == (6, 0)


def test_an_all_zero_key_is_allowed():
    assert not check(request_for(np.zeros((1, DIMS)), [7]), SERVED).keys.any()


@pytest.mark.parametrize(
    ("changes", "field", "allowed"),
    [
        ({"num_queries": 0}, "num_queries", "1 to 3"),
        ({"num_queries": 4}, "num_queries", "1 to 3"),
        ({"neighbors": 0}, "neighbors", "1 to 20"),
        ({"neighbors": 21}, "neighbors", "1 to 20"),
        ({"max_nodes": 0}, "max_nodes", "1 to 30"),
        ({"max_nodes": 31}, "max_nodes", "1 to 30"),
        ({"max_depth": 7}, "max_depth", "0 to 6"),
        ({"nprobe": 2**32 - 1}, "nprobe", "0 to 65535"),
        ({"similarity_temperature": 0.0}, "similarity_temperature", "0.001 or more"),
        ({"similarity_temperature": -1.0}, "similarity_temperature", "0.001 or more"),
        ({"similarity_temperature": float("nan")}, "similarity_temperature", "0.001 or more"),
        ({"similarity_temperature": float("inf")}, "similarity_temperature", "finite"),
        ({"next_tokens": [1]}, "next_tokens", "num_queries is 2"),
        ({"next_tokens": [1, 2, 3]}, "next_tokens", "num_queries is 2"),
        ({"key_type": pb.KEY_TYPE_UNSPECIFIED}, "key_type", "KEY_TYPE_FLOAT16"),
        ({"key_type": 17}, "key_type", "KEY_TYPE_FLOAT16"),
        ({"key_type": pb.KEY_TYPE_FLOAT32}, "keys", "2 x 4 x 4 = 32"),
        ({"dims": 5}, "dims", "4 numbers"),
        ({"dims": 0}, "dims", "4 numbers"),
        ({"keys": b""}, "keys", "2 x 4 x 2 = 16"),
        ({"keys": b"x" * 17}, "keys", "2 x 4 x 2 = 16"),
    ],
)
def test_a_bad_field_is_named_with_what_is_allowed(changes: dict[str, object], field: str, allowed: str):
    with pytest.raises(RefusedError) as refused:
        check(request_for(unit_keys(2), [1, 2], **changes), SERVED)
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.message.startswith(f"{field}: ")
    assert allowed in refused.value.message


def sparse_request(contexts: np.ndarray | None = None, **changes: object) -> pb.RetrieveRequest:
    """A good request of two queries for sparse neighbours only, with some fields changed."""
    contexts = np.array([[1, 2, -1], [3, -1, -1]]) if contexts is None else contexts
    good: dict[str, object] = {
        "left_contexts": contexts.astype("<i4").tobytes(),
        "left_context_width": contexts.shape[1],
        "neighbors": 0,
        "similarity_temperature": 0.0,
        "sparse_neighbors": 7,
        "match_temperature": 3.3,
    }
    return request_for(unit_keys(2), [1, 2], **{**good, **changes})


@pytest.mark.parametrize("dense", [{}, {"neighbors": 5, "similarity_temperature": 0.1}])
def test_a_good_sparse_request_passes_whole(dense: dict[str, object]):
    queries = check(sparse_request(**dense), SERVED)
    assert queries.left_contexts.tolist() == [[1, 2, -1], [3, -1, -1]]
    assert queries.left_contexts.dtype == np.int32
    assert (queries.neighbors, queries.sparse_neighbors) == (dense.get("neighbors", 0), 7)
    assert queries.match_temperature == pytest.approx(3.3)


def test_a_request_that_knows_no_sparse_fields_asks_for_none():
    queries = check(request_for(unit_keys(2), [1, 2]), SERVED)
    assert queries.sparse_neighbors == 0
    assert queries.left_contexts.shape == (2, 0)


@pytest.mark.parametrize(
    ("changes", "field", "allowed"),
    [
        ({"sparse_neighbors": 0}, "neighbors", "1 to 20"),
        ({"sparse_neighbors": 21}, "sparse_neighbors", "0 to 20"),
        ({"neighbors": 21, "similarity_temperature": 0.1}, "neighbors", "0 to 20"),
        ({"neighbors": 5}, "similarity_temperature", "0.001 or more"),
        ({"match_temperature": 0.0}, "match_temperature", "0.001 or more"),
        ({"match_temperature": -1.0}, "match_temperature", "0.001 or more"),
        ({"match_temperature": float("nan")}, "match_temperature", "finite"),
        ({"match_temperature": float("inf")}, "match_temperature", "finite"),
        ({"left_context_width": 0, "left_contexts": b""}, "left_context_width", "1 to 5"),
        ({"left_context_width": 6}, "left_context_width", "1 to 5"),
        ({"left_context_width": 2**32 - 1}, "left_context_width", "1 to 5"),
        ({"left_context_width": 2}, "left_contexts", "2 x 2 x 4 = 16"),
        ({"left_contexts": b""}, "left_contexts", "2 x 3 x 4 = 24"),
        ({"left_contexts": b"x" * 25}, "left_contexts", "2 x 3 x 4 = 24"),
        ({"contexts": np.array([[1, 2], [-2, 1]])}, "left_contexts", "query 1"),
        ({"contexts": np.array([[1, -(2**31)], [2, 1]])}, "left_contexts", "query 0"),
        # What is not needed must be right all the same.
        ({"sparse_neighbors": 0, "neighbors": 5, "similarity_temperature": 0.1, "left_contexts": b"x"},
         "left_contexts", "= 24"),
        ({"sparse_neighbors": 0, "neighbors": 5, "similarity_temperature": 0.1, "left_context_width": 6},
         "left_context_width", "0 to 5"),
    ],
)  # fmt: skip
def test_a_bad_sparse_field_is_named_with_what_is_allowed(changes: dict[str, object], field: str, allowed: str):
    with pytest.raises(RefusedError) as refused:
        check(sparse_request(**changes), SERVED)
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.message.startswith(f"{field}: ")
    assert allowed in refused.value.message


@pytest.mark.parametrize("float32", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_is_refused_with_its_query(bad: float, float32: bool):
    keys = unit_keys(3)
    keys[1, 2] = bad
    with pytest.raises(RefusedError, match="keys: query 1 has a NaN or infinite number"):
        check(request_for(keys, [1, 2, 3], float32=float32), SERVED)


@pytest.mark.parametrize("scale", [0.5, 2.0, 1e30])
def test_a_key_that_was_not_normalised_is_refused(scale: float):
    keys = unit_keys(2)
    keys[1] *= scale
    with pytest.raises(RefusedError, match=r"keys: query 1 has length .*L2-normalised"):
        check(request_for(keys, [1, 2], float32=True), SERVED)


small = st.integers(0, 5)


@given(
    st.builds(
        pb.RetrieveRequest,
        keys=st.binary(max_size=64) | small.map(lambda count: unit_keys(count).astype("<f2").tobytes()),
        key_type=small,
        num_queries=small,
        dims=small,
        next_tokens=st.lists(st.integers(0, 2**32 - 1), max_size=5),
        neighbors=small,
        max_nodes=small,
        max_depth=small,
        similarity_temperature=st.floats(width=32),
        left_contexts=st.binary(max_size=16) | small.map(lambda count: np.arange(-1, count, dtype="<i4").tobytes()),
        left_context_width=small,
        sparse_neighbors=small,
        match_temperature=st.floats(width=32),
    )
)
def test_whatever_passes_is_within_bounds(request: pb.RetrieveRequest):
    try:
        queries = check(request, SERVED)
    except RefusedError:
        return
    assert queries.keys.shape == (len(queries.next_tokens), DIMS)
    assert 1 <= len(queries.keys) <= 3
    assert np.isfinite(queries.keys).all()
    assert queries.left_contexts.shape[0] == len(queries.keys)
    assert queries.left_contexts.min(initial=0) >= -1
    assert queries.neighbors + queries.sparse_neighbors >= 1
    assert queries.max_nodes >= 1
    assert 1 <= queries.max_depth <= 6
    assert queries.neighbors == 0 or 0.0 < queries.temperature < float("inf")
    assert queries.sparse_neighbors == 0 or 0.0 < queries.match_temperature < float("inf")
    assert queries.sparse_neighbors == 0 or 1 <= queries.left_contexts.shape[1] <= CONTEXT
