"""Wire messages to values and back, with every check that keeps a faulty server out of the decode loop.

Knows the contract and arrays; opens no connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from decoder_client.wire_trees import BAD_MASS, BAD_PARENT, BAD_TOKEN, TOO_DEEP, check_tree
from dresd.compiled import warm
from dresd.draft_tree import DraftTree
from dresd.identity import KeyRecipe, ModelIdentity
from dresd.v1 import retriever_pb2 as pb


class WireError(Exception):
    """A message that breaks the contract."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for, as the server states it."""

    max_queries: int
    max_neighbors: int
    max_nodes: int


@dataclass(frozen=True, slots=True)
class Draft:
    """The answer to one query.

    Attributes:
        tree: two sources, dense neighbours (column 0) and sparse ones (column 1); masses are not normalised.
        total_masses: float64 [2], of all neighbours, those without a node in the tree too.
        best_similarity: highest cosine among the dense neighbours, 0 when there are none.
        longest_match: tokens of left context that the best sparse neighbour matches, 0 when there are none.
        neighbors: how many were found, dense and sparse.
    """

    tree: DraftTree
    total_masses: NDArray[np.float64]
    best_similarity: float
    longest_match: int
    neighbors: tuple[int, int]


def identity_of(message: pb.ModelIdentity) -> ModelIdentity:
    """The model a datastore was built with."""
    return ModelIdentity(
        name=message.name,
        revision=message.revision,
        weights_fingerprint=message.weights_fingerprint,
        tokenizer_hash=message.tokenizer_hash,
        hidden_size=message.hidden_size,
        vocab_size=message.vocab_size,
    )


def key_recipe_of(message: pb.KeyRecipe) -> KeyRecipe:
    """How that model's states became keys."""
    return KeyRecipe(layer=message.layer, norm=message.norm, dims=message.dims, reducer_hash=message.reducer_hash)


def drafts_of(response: pb.RetrieveResponse, request: pb.RetrieveRequest, *, vocab_size: int) -> list[Draft]:
    """The drafts of a response, one a query.

    Args:
        response: the answer.
        request: what it answers.
        vocab_size: of the target.

    Raises:
        WireError: a tree is missing, is not a tree, is larger than asked for, or has tokens outside the vocabulary.
    """
    if len(response.trees) != request.num_queries:
        raise WireError(f"{len(response.trees)} trees for {request.num_queries} queries")
    # No depth asked for is as deep as the nodes can reach.
    max_depth = request.max_depth or request.max_nodes
    return [_draft_of(message, vocab_size, request.max_nodes, max_depth) for message in response.trees]


@cache
def compile_checks() -> None:
    """Compiles what `drafts_of` calls, or loads it from the cache on disk, so that no answer waits for it."""
    warm(lambda: check_tree(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((2, 0)), np.zeros(2), 1, 1))


def _draft_of(message: pb.DraftTree, vocab_size: int, max_nodes: int, max_depth: int) -> Draft:
    count, sparse = len(message.tokens), message.sparse_masses
    if count > max_nodes:
        raise WireError(f"{count} nodes in a tree; {max_nodes} were asked for")
    if not len(message.parents) == len(message.dense_masses) == count or len(sparse) not in (0, count):
        raise WireError(
            f"{count} tokens, {len(message.parents)} parents, {len(message.dense_masses)} and {len(sparse)} masses in "
            "a tree"
        )
    tokens = np.array(message.tokens[:], np.int64)
    parents = np.array(message.parents[:], np.int64)
    by_source = np.zeros((2, count))
    by_source[0] = message.dense_masses[:]
    if sparse:
        by_source[1] = sparse[:]
    totals = np.array([message.dense_total_mass, message.sparse_total_mass])
    fault, detail, *tree = check_tree(tokens, parents, by_source, totals, vocab_size, max_depth)
    if fault == BAD_TOKEN:
        raise WireError(f"token {detail} in a tree; the vocabulary has {vocab_size}")
    if fault == BAD_PARENT:
        raise WireError("a node comes before its parent in a tree")
    if fault == BAD_MASS:
        raise WireError("a mass in a tree is negative, infinite or NaN")
    if fault == TOO_DEEP:
        raise WireError(f"a tree is {detail} deep; {max_depth} were asked for")
    return Draft(
        tree=DraftTree(*tree),
        total_masses=totals,
        best_similarity=message.best_similarity,
        longest_match=message.longest_match,
        neighbors=(message.neighbors, message.sparse_neighbors),
    )
