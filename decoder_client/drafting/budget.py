"""How many draft nodes a step should verify, and which.

A pass over more tokens takes longer; a node is worth its place while the tokens it is expected to gain come faster
than tokens come anyway. With R tokens per unit of time in the long run, the best number of nodes maximises expected
tokens - R * time (the renewal-reward argument: it also maximises the long-run rate). Knows probabilities and costs, not
where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.cost import CostCurve


class NodeBudget(Protocol):
    """Decides how many nodes each sequence of a batch verifies."""

    def choose(self, probabilities: Sequence[NDArray[np.float64]]) -> list[int]:
        """How many of each sequence's nodes, which are given with the likeliest first."""

    def observe(self, tokens: int) -> None:
        """A sequence of the latest batch got `tokens` tokens."""


class FixedBudget:
    """As many nodes as there are."""

    def choose(self, probabilities: Sequence[NDArray[np.float64]]) -> list[int]:
        """See `NodeBudget`."""
        return [len(one) for one in probabilities]

    def observe(self, _tokens: int) -> None:
        """Nothing to learn."""


class CostBudget:
    """As many nodes as pay for themselves on a measured cost curve."""

    def __init__(self, curve: CostCurve, *, memory: int = 64) -> None:
        """Judges by `curve`; the rate R is that of about the last `memory` steps."""
        self._curve = curve
        self._decay = 1.0 - 1.0 / memory
        self._share_s = float(curve.seconds([1])[0])
        self._tokens, self._seconds = 1.0, self._share_s

    def choose(self, probabilities: Sequence[NDArray[np.float64]]) -> list[int]:
        """See `NodeBudget`: all sequences share the pass, which is as wide as the largest draft."""
        widest = max(map(len, probabilities))
        gains = np.zeros(widest + 1)
        for one in probabilities:
            gains[1 : len(one) + 1] += one
        sequences = len(probabilities)
        times = self._curve.seconds(sequences * np.arange(1, widest + 2))
        best = int((np.cumsum(gains) - times * (self._tokens / self._seconds)).argmax())
        self._share_s = float(times[best]) / sequences
        return [min(best, len(one)) for one in probabilities]

    def observe(self, tokens: int) -> None:
        """See `NodeBudget`."""
        self._tokens = self._decay * self._tokens + tokens
        self._seconds = self._decay * self._seconds + self._share_s
