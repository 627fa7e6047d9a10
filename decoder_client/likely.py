"""The target's likeliest tokens at the rows of one pass, read off the logits that verification needed anyway.

Knows logits and draft trees, not who wants to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoder_client.drafting.drafter import LikelyTokens
from decoder_client.drafting.likeliest import likeliest_tokens
from dresd.draft_tree import DraftTree

WIDTH = 8
"""Tokens a row."""


@dataclass(frozen=True, slots=True)
class LikelyRows:
    """See `Likely`.

    Attributes:
        logits: [1 + n, vocab_size]: row 0 follows the text, row i + 1 draft node i.
        tree: the draft of n nodes.
        nodes: those accepted.
        before: the last one or two tokens of the text before the draft.
    """

    logits: Tensor
    tree: DraftTree
    nodes: Sequence[int]
    before: Sequence[int]

    def __call__(self, *, rejected: bool = False) -> LikelyTokens:
        """See `Likely`."""
        contexts = np.empty((1 + len(self.tree), 2), np.int64)
        contexts[0] = self.before[0] if len(self.before) > 1 else -1, self.before[-1]
        contexts[1:, 1] = self.tree.tokens
        contexts[1:, 0] = contexts[self.tree.parents + 1, 1]
        rows = np.arange(len(contexts)) if rejected else np.array([0, *(node + 1 for node in self.nodes)])
        contexts = contexts[rows]
        width = min(WIDTH, self.logits.shape[1])
        if self.logits.device.type == "cpu":
            # Rows are read where they are: copies of so many numbers take as long as finding the greatest of them.
            return LikelyTokens(contexts, *likeliest_tokens(self.logits.float().numpy(), rows, width))
        scores = self.logits[torch.from_numpy(rows).to(self.logits.device)].float()
        best, next_tokens = scores.topk(width, dim=1)
        probabilities = (best - scores.logsumexp(dim=1, keepdim=True)).exp()
        return LikelyTokens(contexts, next_tokens.cpu().numpy(), probabilities.cpu().numpy())
