"""Every check of a retrieve request, in one place: what passes here may be searched.

Knows messages, limits and the served datastore's shape; searches nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray

from dresd.compiled import warm
from dresd.draft_tree import PAD
from dresd.v1 import retriever_pb2 as pb
from retriever_service.datastore import MAX_NPROBE
from retriever_service.serving.config import Limits
from retriever_service.serving.usable import are_usable

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


class Queries(NamedTuple):
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
    queries, neighbors, sparse_neighbors = request.num_queries, request.neighbors, request.sparse_neighbors
    _within("num_queries", queries, 1, limits.max_queries)
    _within("sparse_neighbors", sparse_neighbors, 0, limits.max_neighbors)
    _within("neighbors", neighbors, 0 if sparse_neighbors else 1, limits.max_neighbors)
    _within("max_nodes", request.max_nodes, 1, limits.max_nodes)
    _within("max_depth", request.max_depth, 0, served.continuation_length)
    _within("nprobe", request.nprobe, 0, MAX_NPROBE)
    if neighbors:
        _temperature("similarity_temperature", request.similarity_temperature)
    if sparse_neighbors:
        _temperature("match_temperature", request.match_temperature)
    next_tokens = np.array(request.next_tokens, np.int64)
    if len(next_tokens) != queries:
        raise _invalid("next_tokens", f"has {len(next_tokens)} items; num_queries is {queries}")
    keys, left_contexts = _keys(request, served.dims), _left_contexts(request, served.left_context_length)
    if not are_usable(keys, _NORM_TOLERANCE, left_contexts, PAD):
        raise _unusable(keys, left_contexts)
    return Queries(
        keys,
        next_tokens,
        left_contexts,
        neighbors,
        sparse_neighbors,
        request.max_nodes,
        request.max_depth or served.continuation_length,
        request.similarity_temperature,
        request.match_temperature,
        request.nprobe,
        frozenset(request.partitions) or None,
    )


@cache
def compile_checks() -> None:
    """Compiles what `check` calls, or loads it from the cache on disk, so that no answer waits for it."""
    warm(lambda: are_usable(np.zeros((1, 1), np.float32), _NORM_TOLERANCE, np.zeros((1, 1), np.int32), PAD))


def _keys(request: pb.RetrieveRequest, dims: int) -> NDArray[np.float32]:
    """Of the right shape, unseen otherwise."""
    dtype = _KEY_TYPES.get(request.key_type)
    if dtype is None:
        raise _invalid("key_type", f"is {request.key_type}; allowed are KEY_TYPE_FLOAT16 (1) and KEY_TYPE_FLOAT32 (2)")
    if request.dims != dims:
        raise _invalid("dims", f"is {request.dims}; keys of this datastore have {dims} numbers")
    content, queries = request.keys, request.num_queries
    expected = queries * dims * dtype.itemsize
    if len(content) != expected:
        raise _invalid(
            "keys",
            f"has {len(content)} bytes; num_queries x dims x bytes of a {dtype.name} is "
            f"{queries} x {dims} x {dtype.itemsize} = {expected}",
        )
    return np.frombuffer(content, dtype).reshape(queries, dims).astype(np.float32)


def _left_contexts(request: pb.RetrieveRequest, longest: int) -> NDArray[np.int32]:
    """Of the right shape, unseen otherwise."""
    content, queries, width = request.left_contexts, request.num_queries, request.left_context_width
    _within("left_context_width", width, 1 if request.sparse_neighbors else 0, longest)
    expected = queries * width * _CONTEXT_TYPE.itemsize
    if len(content) != expected:
        raise _invalid(
            "left_contexts",
            f"has {len(content)} bytes; num_queries x left_context_width x bytes of an int32 is "
            f"{queries} x {width} x {_CONTEXT_TYPE.itemsize} = {expected}",
        )
    return np.frombuffer(content, _CONTEXT_TYPE).reshape(queries, width).astype(np.int32)


def _unusable(keys: NDArray[np.float32], left_contexts: NDArray[np.int32]) -> RefusedError:
    """What `are_usable` found wrong, in words."""
    # Overflow to infinity of a huge float32 key's length is refused with the other lengths.
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("qd,qd->q", keys, keys))
    finite = np.isfinite(keys).all(axis=1)
    if not finite.all():
        return _invalid("keys", f"query {int(np.argmin(finite))} has a NaN or infinite number; keys must be finite")
    tokens_or_none = (left_contexts >= PAD).all(axis=1)
    if not tokens_or_none.all():
        first = int(np.argmin(tokens_or_none))
        return _invalid("left_contexts", f"query {first} has a token below 0 that is not {PAD}, which stands for none")
    first = int(np.argmax(np.where(lengths == 0.0, 0.0, np.abs(lengths - 1.0))))
    return _invalid("keys", f"query {first} has length {lengths[first]:.3g}; keys are L2-normalised (1, or all zero)")


def _temperature(field: str, value: float) -> None:
    if not _MIN_TEMPERATURE <= value < math.inf:
        raise _invalid(field, f"is {value:g}; allowed is {_MIN_TEMPERATURE:g} or more, finite")


def _within(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _invalid(field, f"is {value}; allowed is {least} to {most}")


def _invalid(field: str, problem: str) -> RefusedError:
    return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {problem}")
