"""DReSD as published: the nearest entries of all, those with another next token dropped afterwards.

Source: Gritta et al., "DReSD: Dense Retrieval for Speculative Decoding" (arXiv 2502.15572) and its code, with their
settings: the 50 nearest entries by cosine, whatever their next token; of those with the token just chosen the first 10
in order of similarity; 10 tokens of each, identical drafts kept, verified as rows of a batch. So the tokens verified
are rows x 10, up to 100, whatever node budget is set; `verified` says how many.

Deviations: only answers are stored, and keys are the datastore's own (8 bits a number unless built otherwise;
published: prompts too, 16 bits), because all methods draft from one store; a decode loop that verifies trees is given
the same drafts merged into one tree, which accepts exactly what the rows would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from decoder_client.drafting.drafter import DraftRequest, Outcome
from decoder_client.evaluation.baselines.trees import frequent_prefixes
from dresd.draft_tree import DraftTree

NEIGHBORS = 50
NUM_DRAFTS = 10
DRAFT_TOKENS = 10

Lookup = Callable[[Tensor], tuple[NDArray[np.int64], NDArray[np.int32]]]
"""state [hidden_size] -> the nearest entries' next tokens int64 [k] and continuations int32 [k, N], nearest first."""


@dataclass(slots=True)
class PaperSession:
    """What the latest draft costs to verify as published."""

    verified: int = 0


class DresdPaper:
    """See the module; a `Drafter`."""

    def __init__(self, lookup: Lookup) -> None:
        """Drafts from what `lookup` finds, `NEIGHBORS` at a time."""
        self._lookup = lookup

    def start(self, prompt: Sequence[int]) -> PaperSession:
        """See `Drafter`."""
        del prompt
        return PaperSession()

    def propose(self, requests: Sequence[DraftRequest[PaperSession]]) -> list[DraftTree]:
        """See `Drafter`; the tree may exceed the request's `max_nodes`."""
        return [self._propose(request) for request in requests]

    def observe(self, session: PaperSession, outcome: Outcome) -> None:
        """See `Drafter`: the store does not change."""

    def verified(self, session: PaperSession) -> int:
        """Rows x tokens of the latest draft."""
        return session.verified

    def _propose(self, request: DraftRequest[PaperSession]) -> DraftTree:
        next_tokens, continuations = self._lookup(request.state)
        depth = min(DRAFT_TOKENS, request.max_depth)
        drafts = continuations[next_tokens == request.text[-1]][:NUM_DRAFTS, :depth]
        request.session.verified = drafts.size
        return frequent_prefixes(drafts, drafts.size)
