"""Tells whether an evaluation asks for what the datastore was built from: such figures say nothing of other prompts.

Knows the datastore's entries and files of token ids; not what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decoder_client.evaluation.token_records import TokenFileError, TokenRecord, read_token_records
from dresd.draft_tree import ROOT, DraftTree
from retriever_service.datastore import Datastore

_PLACES = 64
"""Places looked at in one answer, at most."""
_SHARE = 0.5
"""Of an answer's places that are the datastore's, word for word: fewer is phrasing that answers share."""
_EQUAL = 16
"""Entries with the same tokens before them that are looked at for each place."""
_FULL_MATCHES_ONLY = 0.05
"""A match temperature at which a context that differs in one token weighs nothing."""


def seen_before(
    records: Sequence[TokenRecord], datastore: Datastore | None, corpus: Sequence[Path], *, vocab_size: int
) -> str | None:
    """A sentence about the prompts and answers that are the store's own, None if there are none.

    Args:
        records: what is evaluated.
        datastore: whose entries are searched for the answers; None for none.
        corpus: files of token ids; texts are passed over.
        vocab_size: token ids lie below it.
    """
    prompts, answers = set(), set()
    for file in corpus:
        try:
            known = read_token_records(file, vocab_size=vocab_size)
        except TokenFileError:
            continue  # whoever needs the file complains
        prompts |= {record.prompt for record in known}
        answers |= {record.answer for record in known}
    seen = [
        record
        for record in records
        if record.prompt in prompts
        or record.answer in answers
        or (datastore is not None and _stores(datastore, record))
    ]
    if not seen:
        return None
    return (
        f"{len(seen)} of {len(records)} answers measured here are among those the datastore was built from "
        f"({seen[0].name} is one), so these figures mean nothing for other prompts. Measure with prompts that it has "
        "not seen."
    )


def _stores(datastore: Datastore, record: TokenRecord) -> bool:
    """Whether the datastore holds most of the answer word for word: tokens with those before and after them."""
    manifest = datastore.manifest
    width, text = manifest.left_context_length, np.array(record.prompt + record.answer, np.int32)
    # Places with a whole left context before them and `depth` tokens behind them.
    begin = max(len(record.prompt), width)
    depth = min(manifest.continuation_length, (len(text) - begin) // 2)
    if depth < 1:
        return False
    places = np.arange(begin, len(text) - depth)
    places = places[:: -(-len(places) // _PLACES)]
    found = datastore.draft(
        np.zeros((len(places), manifest.key_recipe.dims), np.float32),
        text[places].astype(np.int64),
        left_contexts=text[places[:, None] - np.arange(1, width + 1)],
        neighbors=0,
        sparse_neighbors=_EQUAL,
        max_nodes=_EQUAL * depth,
        max_depth=depth,
        match_temperature=_FULL_MATCHES_ONLY,
    )
    held = [_has_path(tree, text[at + 1 : at + 1 + depth]) for tree, at in zip(found.trees, places, strict=True)]
    return sum(held) >= _SHARE * len(held)


def _has_path(tree: DraftTree, tokens: NDArray[np.int32]) -> bool:
    """Whether an entry of weight 1 or more continues so."""
    children = {
        (parent, token): node
        for node, (parent, token, weight) in enumerate(
            zip(tree.parents.tolist(), tree.tokens.tolist(), tree.masses.sum(axis=1), strict=True)
        )
        if weight > 0.99
    }
    node: int | None = ROOT
    for token in tokens.tolist():
        node = children.get((node, token)) if node is not None else None
    return node is not None
