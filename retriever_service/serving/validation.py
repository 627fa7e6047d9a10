"""Every check of a retrieve request, in one place: what passes here may be searched.

Knows messages, limits and the served datastore's shape; searches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD
from dresd.v1 import retriever_pb2 as pb
from retriever_service.datastore import MAX_NPROBE
from retriever_service.serving.config import Limits

_KEY_TYPES: dict[int, np.dtype[np.floating]] = {
    pb.KEY_TYPE_FLOAT16: np.dtype("<f2"),
    pb.KEY_TYPE_FLOAT32: np.dtype("<f4"),
}
_CONTEXT_TYPE = np.dtype("<i4")
_MIN_TEMPERATURE = 1e-3
"""Below it, a rounding error in a cosine would become an enormous mass."""
_NORM_TOLERANCE = 0.02
"""A key that is further from length 1 was not normalised; float16 rounds far finer than this."""


class RefusedError(Exception):
    """A request that gets a status in place of an answer."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Served:
    """What requests are checked against.

    Attributes:
        dims: numbers in a key.
        continuation_length: deepest draft.
        left_context_length: longest left context.
        limits: what one request may ask for.
    """

    dims: int
    continuation_length: int
    left_context_length: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class Queries:
    """A checked request.

    Attributes:
        keys: float32 [B, dims], each of length 1, or all zero.
        next_tokens: int64 [B], possibly outside the datastore's vocabulary.
        left_contexts: int32 [B, w], tokens possibly outside the vocabulary, -1 for none; w is 1 or more with sparse
            neighbours, at most the left context length.
        neighbors, sparse_neighbors: one of them or both 1 or more, within limits.
        max_nodes: 1 or more, within limits.
        max_depth: 1 to the continuation length.
        temperature, match_temperature: finite and greater than 0 where neighbours of their kind are asked for.
        nprobe: 0 is the datastore's own setting.
        partitions: those to search; None is all that the queries concern.
    """

    keys: NDArray[np.float32]
    next_tokens: NDArray[np.int64]
    left_contexts: NDArray[np.int32]
    neighbors: int
    sparse_neighbors: int
    max_nodes: int
    max_depth: int
    temperature: float
    match_temperature: float
    nprobe: int
    partitions: frozenset[int] | None


def check(request: pb.RetrieveRequest, served: Served) -> Queries:
    """Checks every field of a request but those that choose who answers: the collection and the build.

    Raises:
        RefusedError: INVALID_ARGUMENT; the message names the field and what is allowed.
    """
    limits = served.limits
    _within("num_queries", request.num_queries, 1, limits.max_queries)
    _within("sparse_neighbors", request.sparse_neighbors, 0, limits.max_neighbors)
    _within("neighbors", request.neighbors, 0 if request.sparse_neighbors else 1, limits.max_neighbors)
    _within("max_nodes", request.max_nodes, 1, limits.max_nodes)
    _within("max_depth", request.max_depth, 0, served.continuation_length)
    _within("nprobe", request.nprobe, 0, MAX_NPROBE)
    if request.neighbors:
        _temperature("similarity_temperature", request.similarity_temperature)
    if request.sparse_neighbors:
        _temperature("match_temperature", request.match_temperature)
    if len(request.next_tokens) != request.num_queries:
        raise _invalid("next_tokens", f"has {len(request.next_tokens)} items; num_queries is {request.num_queries}")
    return Queries(
        keys=_keys(request, served.dims),
        next_tokens=np.array(request.next_tokens, np.int64),
        left_contexts=_left_contexts(request, served.left_context_length),
        neighbors=request.neighbors,
        sparse_neighbors=request.sparse_neighbors,
        max_nodes=request.max_nodes,
        max_depth=request.max_depth or served.continuation_length,
        temperature=request.similarity_temperature,
        match_temperature=request.match_temperature,
        nprobe=request.nprobe,
        partitions=frozenset(request.partitions) or None,
    )


def _keys(request: pb.RetrieveRequest, dims: int) -> NDArray[np.float32]:
    dtype = _KEY_TYPES.get(request.key_type)
    if dtype is None:
        raise _invalid("key_type", f"is {request.key_type}; allowed are KEY_TYPE_FLOAT16 (1) and KEY_TYPE_FLOAT32 (2)")
    if request.dims != dims:
        raise _invalid("dims", f"is {request.dims}; keys of this datastore have {dims} numbers")
    expected = request.num_queries * dims * dtype.itemsize
    if len(request.keys) != expected:
        raise _invalid(
            "keys",
            f"has {len(request.keys)} bytes; num_queries x dims x bytes of a {dtype.name} is "
            f"{request.num_queries} x {dims} x {dtype.itemsize} = {expected}",
        )
    keys = np.frombuffer(request.keys, dtype).reshape(-1, dims).astype(np.float32)
    # Overflow to infinity of a huge float32 key's length is refused below with the other lengths.
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("qd,qd->q", keys, keys))
    finite = np.isfinite(keys).all(axis=1)
    if not finite.all():
        raise _invalid("keys", f"query {int(np.argmin(finite))} has a NaN or infinite number; keys must be finite")
    normalised = (lengths == 0.0) | (np.abs(lengths - 1.0) <= _NORM_TOLERANCE)
    if not normalised.all():
        first = int(np.argmin(normalised))
        raise _invalid(
            "keys", f"query {first} has length {lengths[first]:.3g}; keys are L2-normalised (1, or all zero)"
        )
    return keys


def _left_contexts(request: pb.RetrieveRequest, longest: int) -> NDArray[np.int32]:
    width = request.left_context_width
    _within("left_context_width", width, 1 if request.sparse_neighbors else 0, longest)
    expected = request.num_queries * width * _CONTEXT_TYPE.itemsize
    if len(request.left_contexts) != expected:
        raise _invalid(
            "left_contexts",
            f"has {len(request.left_contexts)} bytes; num_queries x left_context_width x bytes of an int32 is "
            f"{request.num_queries} x {width} x {_CONTEXT_TYPE.itemsize} = {expected}",
        )
    contexts = np.frombuffer(request.left_contexts, _CONTEXT_TYPE).reshape(request.num_queries, width).astype(np.int32)
    tokens_or_none = (contexts >= PAD).all(axis=1)
    if not tokens_or_none.all():
        first = int(np.argmin(tokens_or_none))
        raise _invalid("left_contexts", f"query {first} has a token below 0 that is not {PAD}, which stands for none")
    return contexts


def _temperature(field: str, value: float) -> None:
    if not (np.isfinite(value) and value >= _MIN_TEMPERATURE):
        raise _invalid(field, f"is {value:g}; allowed is {_MIN_TEMPERATURE:g} or more, finite")


def _within(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _invalid(field, f"is {value}; allowed is {least} to {most}")


def _invalid(field: str, problem: str) -> RefusedError:
    return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {problem}")
