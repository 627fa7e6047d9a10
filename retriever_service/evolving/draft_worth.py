"""What a datastore's drafts are worth at places like those of some entries: no model is needed.

An entry's key and next token are a query whose answer is known: its continuation. Its draft is made of the nearest
others; those with the same tokens around them are left out (the entry itself, and its verbatim copies). The tokens of
the continuation that the draft holds, and the one that any pass gives, are what a forward pass would yield there.

It is dense drafting alone, and at places taken at random, most of which lie in stretches that a datastore knows well,
while a decoder drafts anew where a draft has failed. So it tells datastores apart, and is no speed: `dresd-decoder
replay` walks answers with all sources.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import ROOT, DraftTree
from dresd.path_merging import merge_paths
from retriever_service.datastore import Datastore, EntryBatch

NODES = 32
NEIGHBORS = 50
_TO_SPARE = 30
"""Neighbours searched beside those wanted, for the copies that are left out."""
_TEMPERATURE = 0.1
_QUERIES_AT_ONCE = 256


def tokens_per_pass(store: Datastore, entries: EntryBatch) -> float:
    """Mean tokens of a forward pass at the places of some entries, with drafts of `NODES` tokens; 1 without places."""
    tokens = 0
    for begin in range(0, len(entries), _QUERIES_AT_ONCE):
        some = entries.select(np.arange(begin, min(begin + _QUERIES_AT_ONCE, len(entries))))
        for tree, path in zip(_trees(store, some), some.continuations, strict=True):
            tokens += 1 + _accepted(tree, path)
    return tokens / len(entries) if len(entries) > 0 else 1.0


def _trees(store: Datastore, queries: EntryBatch) -> list[DraftTree]:
    near = store.search(queries.keys, queries.next_tokens, neighbors=NEIGHBORS + _TO_SPARE)
    rows, places = np.nonzero(near.ids >= 0)
    stored = store.entries(near.ids[rows, places])
    copies = (stored.continuations == queries.continuations[rows]).all(axis=1)
    copies &= (stored.left_contexts == queries.left_contexts[rows]).all(axis=1)
    rows, places, paths = rows[~copies], places[~copies], stored.continuations[~copies]
    nth = np.arange(len(rows)) - np.searchsorted(rows, rows)
    chosen = nth < NEIGHBORS
    rows, places, paths = rows[chosen], places[chosen], paths[chosen]
    weights = np.exp((np.minimum(near.similarities[rows, places], 1.0).astype(np.float64) - 1.0) / _TEMPERATURE)
    return merge_paths(rows, paths, weights[:, None], num_queries=len(queries), max_nodes=NODES)


def _accepted(tree: DraftTree, path: NDArray[np.int32]) -> int:
    """How many tokens of a path the tree holds from its root on."""
    children = {(parent, token): node for node, (parent, token) in enumerate(_links(tree))}
    node, length = ROOT, 0
    for token in path.tolist():
        if (node, token) not in children:
            break
        node, length = children[node, token], length + 1
    return length


def _links(tree: DraftTree) -> list[tuple[int, int]]:
    return list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
