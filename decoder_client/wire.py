"""Wire messages to values and back, with every check that keeps a faulty server out of the decode loop.

Knows the contract and arrays; opens no connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import ROOT, DraftTree
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
        tree: one source, the dense neighbours; masses are not normalised.
        total_mass: of all neighbours, those without a node in the tree too.
        best_similarity: highest cosine among the neighbours, 0 when there are none.
        neighbors: how many were found.
    """

    tree: DraftTree
    total_mass: float
    best_similarity: float
    neighbors: int


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


def request_message(
    build_id: str,
    keys: NDArray[np.float16],
    next_tokens: Sequence[int],
    *,
    neighbors: int,
    max_nodes: int,
    max_depth: int,
    temperature: float,
) -> pb.RetrieveRequest:
    """One batch of queries; keys [B, dims], next_tokens [B]."""
    return pb.RetrieveRequest(
        build_id=build_id,
        keys=keys.astype("<f2", order="C", copy=False).tobytes(),
        key_type=pb.KEY_TYPE_FLOAT16,
        num_queries=keys.shape[0],
        dims=keys.shape[1],
        next_tokens=next_tokens,
        neighbors=neighbors,
        max_nodes=max_nodes,
        max_depth=max_depth,
        similarity_temperature=temperature,
    )


def drafts_of(response: pb.RetrieveResponse, *, num_queries: int, vocab_size: int) -> list[Draft]:
    """The drafts of a response, one a query.

    Raises:
        WireError: a tree is missing, is not a tree, or has tokens outside the vocabulary.
    """
    if len(response.trees) != num_queries:
        raise WireError(f"{len(response.trees)} trees for {num_queries} queries")
    return [_draft_of(message, vocab_size) for message in response.trees]


def _draft_of(message: pb.DraftTree, vocab_size: int) -> Draft:
    count = len(message.tokens)
    if len(message.parents) != count or len(message.dense_masses) != count:
        raise WireError(f"{count} tokens, {len(message.parents)} parents, {len(message.dense_masses)} masses in a tree")
    tokens = np.fromiter(message.tokens, np.int64, count)
    parents = np.fromiter(message.parents, np.int64, count) + ROOT  # 0 on the wire is the root
    masses = np.fromiter(message.dense_masses, np.float64, count)
    if not (tokens < vocab_size).all():
        raise WireError(f"token {int(tokens.max())} in a tree; the vocabulary has {vocab_size}")
    if not (parents < np.arange(count)).all():
        raise WireError("a node comes before its parent in a tree")
    if not (np.isfinite(masses).all() and (masses >= 0.0).all() and np.isfinite(message.dense_total_mass)):
        raise WireError("a mass in a tree is negative, infinite or NaN")
    return Draft(
        tree=DraftTree(tokens.astype(np.int32), parents.astype(np.int32), masses[:, None]),
        total_mass=message.dense_total_mass,
        best_similarity=message.best_similarity,
        neighbors=message.neighbors,
    )
