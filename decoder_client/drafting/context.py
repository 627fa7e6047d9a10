"""Drafts from the text itself (prompt lookup): what followed the last tokens where they stood before.

Source: prompt lookup decoding (Saxena 2023), with weights by the length of the match. Earlier places are found by
hash maps that grow with the text; the text is never scanned again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoder_client.drafting.drafter import DraftRequest, Proposal
from dresd.draft_tree import PAD

MATCH_WEIGHTS = (0.05, 0.2, 0.5, 0.8, 1.2, 2.0, 3.0, 4.0)
"""Weight of a path by the number of tokens that match before it (1, 2, ...; longer matches weigh like the last),
where all dense neighbours of a lookup weigh 1 together."""


class ContextDrafter:
    """Remembers, for every run of up to `len(MATCH_WEIGHTS)` tokens, where it ended last."""

    def __init__(self, *, max_paths: int = 5) -> None:
        """Proposes the continuations of the `max_paths` best earlier places, longest match first."""
        self._max_paths = max_paths
        self.begin()

    def begin(self) -> None:
        """See `Drafter`."""
        self._indexed = 0
        # ends[n - 1][run of n tokens] -> positions of its last token, ascending.
        self._ends: list[dict[tuple[int, ...], list[int]]] = [{} for _ in MATCH_WEIGHTS]

    def propose(self, request: DraftRequest) -> Proposal | None:
        """See `Drafter`."""
        tokens = request.tokens
        last = len(tokens) - 1
        self._index(tokens, last)
        found: dict[int, float] = {}
        for length in range(min(len(MATCH_WEIGHTS), last), 0, -1):
            run = tuple(tokens[last + 1 - length :])
            for end in reversed(self._ends[length - 1].get(run, ())):
                found.setdefault(end, MATCH_WEIGHTS[length - 1])
                if len(found) == self._max_paths:
                    break
            if len(found) == self._max_paths:
                break
        if not found:
            return None
        paths = np.full((len(found), request.max_depth), PAD, np.int32)
        for path, end in zip(paths, found, strict=True):
            continuation = tokens[end + 1 : end + 1 + request.max_depth]
            path[: len(continuation)] = continuation
        return Proposal(paths, np.fromiter(found.values(), np.float64, len(found)))

    def _index(self, tokens: Sequence[int], until: int) -> None:
        """Notes all runs that end before position `until`: they have a continuation."""
        for end in range(self._indexed, until):
            for length, ends in enumerate(self._ends, start=1):
                if length > end + 1:
                    break
                ends.setdefault(tuple(tokens[end + 1 - length : end + 1]), []).append(end)
        self._indexed = max(self._indexed, until)
