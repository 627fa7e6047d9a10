"""Datastore values to wire messages. Knows no requests and no calls."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version

import numpy as np

from dresd.compiled import warm
from dresd.draft_tree import ROOT, DraftTree
from dresd.path_merging import merge_trees
from dresd.v1 import retriever_pb2 as pb
from retriever_service.datastore import Datastore, DraftBatch
from retriever_service.serving.config import Limits
from retriever_service.serving.tree_encoding import encode_trees

_MAX_UINT32 = 2**32 - 1
_CHUNK = 1 << 20


def info_message(datastore: Datastore, limits: Limits) -> pb.GetInfoResponse:
    """The handshake's answer."""
    manifest, routing = datastore.manifest, datastore.routing
    model, recipe = manifest.model, manifest.key_recipe
    return pb.GetInfoResponse(
        service_version=version("dresd"),
        build_id=manifest.build_id,
        model=pb.ModelIdentity(
            name=model.name,
            revision=model.revision,
            weights_fingerprint=model.weights_fingerprint,
            tokenizer_hash=model.tokenizer_hash,
            hidden_size=model.hidden_size,
            vocab_size=model.vocab_size,
        ),
        key_recipe=pb.KeyRecipe(
            layer=recipe.layer, norm=recipe.norm, dims=recipe.dims, reducer_hash=recipe.reducer_hash
        ),
        continuation_length=manifest.continuation_length,
        left_context_length=manifest.left_context_length,
        limits=pb.Limits(
            max_queries=limits.max_queries, max_neighbors=limits.max_neighbors, max_nodes=limits.max_nodes
        ),
        routing=pb.RoutingTable(
            num_partitions=len(manifest.partitions),
            tokens=routing.tokens.tolist(),
            offsets=routing.offsets.tolist(),
            partitions=routing.partitions.tolist(),
        ),
        served_partitions=list(datastore.served_partitions),
        num_entries=datastore.num_entries,
    )


def reducer_message(datastore: Datastore) -> pb.GetReducerResponse:
    """The reducer's file."""
    content = datastore.reducer_bytes
    return pb.GetReducerResponse(safetensors=content, sha256=hashlib.sha256(content).hexdigest())


def token_table_messages(content: bytes, sha256: str) -> Iterator[pb.GetTokenTableResponse]:
    """The token table's file in parts, with its sha256 (hex)."""
    for start in range(0, len(content), _CHUNK):
        yield pb.GetTokenTableResponse(chunk=content[start : start + _CHUNK], total_size=len(content), sha256=sha256)


def fill_response(
    response: pb.RetrieveResponse, build_id: str, current_build_id: str, batch: DraftBatch, queue_s: float
) -> None:
    """One batch's drafts by `build_id`, with the time they took, into an empty message."""
    response.MergeFromString(
        encode_trees(
            batch.ends,
            batch.tokens,
            batch.parents,
            batch.masses,
            batch.total_masses,
            batch.best_similarities,
            batch.longest_matches,
            batch.neighbor_counts,
        ).tobytes()
    )
    response.build_id = build_id
    if current_build_id != build_id:
        response.current_build_id = current_build_id
    coverage, timing = response.coverage, response.timing
    coverage.partitions_asked, coverage.partitions_answered = batch.partitions_asked, batch.partitions_answered
    timing.queue_us = min(round(queue_s * 1e6), _MAX_UINT32)
    timing.search_us = min(batch.search_us, _MAX_UINT32)
    timing.merge_us = min(batch.merge_us, _MAX_UINT32)


@cache
def compile_messages() -> None:
    """Compiles what `fill_response` calls, or loads it from the cache on disk, so that no answer waits for it."""
    none, no_masses = np.zeros(0, np.int32), np.zeros((0, 2))
    one, floats = np.zeros(1, np.int64), np.zeros(1, np.float32)
    warm(lambda: encode_trees(one, none, none, no_masses, np.zeros((1, 2)), floats, one, np.zeros((1, 2), np.int64)))


def merged_tree(ours: pb.DraftTree, theirs: pb.DraftTree, max_nodes: int) -> pb.DraftTree:
    """The tree of two servers' neighbours of one query; `ours` alone where `theirs` is no tree."""
    if not (ours.neighbors or ours.sparse_neighbors):
        return theirs
    tree = _tree_of(theirs)
    if tree is None or not (theirs.neighbors or theirs.sparse_neighbors):
        return ours
    mine = _tree_of(ours)
    merged = tree if mine is None else merge_trees([mine, tree], max_nodes)
    return _tree_message(
        merged,
        [ours.dense_total_mass + theirs.dense_total_mass, ours.sparse_total_mass + theirs.sparse_total_mass],
        [ours.neighbors + theirs.neighbors, ours.sparse_neighbors + theirs.sparse_neighbors],
        max((each.best_similarity for each in (ours, theirs) if each.neighbors), default=0.0),
        max(ours.longest_match, theirs.longest_match),
    )


def _tree_of(message: pb.DraftTree) -> DraftTree | None:
    """None where the message, another server's, is no tree."""
    count = len(message.tokens)
    sparse = message.sparse_masses or [0.0] * count
    if not count == len(message.parents) == len(message.dense_masses) == len(sparse):
        return None
    parents = np.array(message.parents, np.int64) + ROOT  # 0 on the wire is the root
    if not (parents < np.arange(count)).all():
        return None
    masses = np.stack([np.array(message.dense_masses, np.float64), np.array(sparse, np.float64)], axis=1)
    return DraftTree(np.array(message.tokens, np.int64).astype(np.int32), parents.astype(np.int32), masses)


def _tree_message(
    tree: DraftTree, total_masses: list[float], counts: list[int], best_similarity: float, longest_match: int
) -> pb.DraftTree:
    return pb.DraftTree(
        tokens=tree.tokens.tolist(),
        parents=(tree.parents + 1).tolist(),
        dense_masses=tree.masses[:, 0].tolist(),
        sparse_masses=tree.masses[:, 1].tolist() if counts[1] else None,
        dense_total_mass=total_masses[0],
        sparse_total_mass=total_masses[1],
        best_similarity=best_similarity,
        neighbors=counts[0],
        longest_match=longest_match,
        sparse_neighbors=counts[1],
    )
