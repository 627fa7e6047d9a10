"""REST: the most frequent continuations of the longest suffix of the text that the store holds.

Source: He et al., "REST: Retrieval-Based Speculative Decoding" (arXiv 2311.08252) and its code, with their settings:
suffixes of 16, 15, ... 2 tokens, the token just chosen included, the first length with a hit wins; at most 5,000 hits
in suffix-array order; continuations of 10 tokens; the 64 most frequent prefixes, verified as a tree.

Deviations: equally frequent prefixes are chosen deterministically (published: arbitrarily); matches and continuations
end with their document (published: they cross into the next one); without a hit there is no draft (published: a
constant token).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.drafter import DraftRequest, Outcome
from decoder_client.evaluation.baselines.missing import MissingPackageError
from decoder_client.evaluation.baselines.trees import cut_after, frequent_prefixes
from dresd.draft_tree import DraftTree

LONGEST_SUFFIX = 16
SHORTEST_SUFFIX = 2
MAX_HITS = 5000
CONTINUATION = 10
MAX_NODES = 64

_END = 2**31 - 1
"""Separates documents: no token id."""


class SuffixArray:
    """Documents of token ids, searchable for any run of tokens."""

    def __init__(self, documents: Sequence[Sequence[int]]) -> None:
        """Indexes the documents; MissingPackageError without pydivsufsort."""
        try:
            from pydivsufsort import divsufsort
        except ModuleNotFoundError as error:
            raise MissingPackageError("rest", 'pip install "dresd[bench]"') from error
        separated = [np.array([*document, _END], np.int32) for document in documents]
        # No continuation reaches beyond the array.
        tail = np.full(CONTINUATION, _END, np.int32)
        self.tokens: NDArray[np.int32] = np.concatenate([*separated, tail])
        # Big-endian bytes compare as the numbers do, and one comparison of bytes compares a whole run.
        self._bytes = self.tokens.astype(">u4").tobytes()
        self._order: NDArray[np.int64] = divsufsort(self.tokens).astype(np.int64)

    def find(self, run: Sequence[int]) -> NDArray[np.int64]:
        """int64 [hits]: where the run begins, in the order of what follows it."""
        wanted = np.array(run, ">u4").tobytes()

        def head(start: int) -> bytes:
            return self._bytes[4 * start : 4 * start + len(wanted)]

        begin = bisect_left(self._order, wanted, key=head)
        return self._order[begin : bisect_right(self._order, wanted, lo=begin, key=head)]


class Rest:
    """See the module; a `Drafter` without a session."""

    def __init__(self, store: SuffixArray) -> None:
        """Drafts from `store`."""
        self._store = store

    def start(self, prompt: Sequence[int]) -> None:
        """See `Drafter`: the store is all it knows."""

    def propose(self, requests: Sequence[DraftRequest[None]]) -> list[DraftTree]:
        """See `Drafter`."""
        return [self._propose(request) for request in requests]

    def observe(self, session: None, outcome: Outcome) -> None:
        """See `Drafter`: the store does not change."""

    def _propose(self, request: DraftRequest[None]) -> DraftTree:
        depth = min(CONTINUATION, request.max_depth)
        for length in range(min(LONGEST_SUFFIX, len(request.text)), SHORTEST_SUFFIX - 1, -1):
            hits = self._store.find(request.text[-length:])[:MAX_HITS]
            if len(hits):
                paths = self._store.tokens[hits[:, None] + length + np.arange(depth)]
                cut_after(paths, _END)
                return frequent_prefixes(paths, min(MAX_NODES, request.max_nodes))
        return DraftTree.empty()
