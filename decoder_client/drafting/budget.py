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
from decoder_client.drafting.gate import Gate


class NodeBudget(Protocol):
    """Decides whether a step drafts, and how many nodes each sequence of a batch verifies."""

    @property
    def token_s(self) -> float | None:
        """Seconds that an accepted token saves; None if unknown."""

    @property
    def floor(self) -> float:
        """The least probability of a node that may be chosen."""

    def begin(self) -> None:
        """A new sequence starts, which may be another kind of text."""

    def opens(self) -> bool:
        """Asked once a step: whether drafting at this one may pay."""

    def choose(self, probabilities: Sequence[NDArray[np.float64]]) -> list[int]:
        """How many of each sequence's nodes, which are given with the likeliest first."""

    def observe(self, tokens: int, draft_s: float) -> None:
        """A sequence of the latest batch got `tokens` tokens by a draft that took `draft_s` to make."""


class FixedBudget:
    """As many nodes as there are, at every step."""

    token_s = None
    floor = 1e-3

    def begin(self) -> None:
        """See `NodeBudget`."""

    def opens(self) -> bool:
        """See `NodeBudget`."""
        return True

    def choose(self, probabilities: Sequence[NDArray[np.float64]]) -> list[int]:
        """See `NodeBudget`."""
        return [len(one) for one in probabilities]

    def observe(self, _tokens: int, _draft_s: float) -> None:
        """Nothing to learn."""


class CostBudget:
    """As many nodes as pay for themselves on a measured cost curve, and no drafts while none do."""

    def __init__(self, curve: CostCurve, *, memory: int = 64) -> None:
        """Judges by `curve`; the rate R is that of about the last `memory` steps."""
        self._curve = curve
        self._decay = 1.0 - 1.0 / memory
        self._plain_s = self._pass_s = float(curve.seconds([1])[0])
        self._tokens, self._seconds = 1.0, self._plain_s
        steps = np.diff(curve.pass_seconds) / np.diff(curve.tokens)
        # Nodes in a row may pay together where none would pay alone, so half of the cheapest is still looked at.
        self._least_s = 0.5 * max(0.0, float(steps.min()))
        self._gate = Gate()

    @property
    def token_s(self) -> float:
        """See `NodeBudget`: the share in a pass without drafts."""
        return self._plain_s

    @property
    def floor(self) -> float:
        """See `NodeBudget`: a node that gains less than it costs is not chosen."""
        return min(max(1e-3, self._least_s * self._tokens / self._seconds), 0.5)

    def begin(self) -> None:
        """See `NodeBudget`."""
        self._gate.begin()

    def opens(self) -> bool:
        """See `NodeBudget`."""
        return self._gate.opens()

    def choose(self, probabilities: Sequence[NDArray[np.float64]]) -> list[int]:
        """See `NodeBudget`: all sequences share the pass, which is as wide as the largest draft."""
        widest = max(map(len, probabilities))
        gains = np.zeros(widest + 1)
        for one in probabilities:
            gains[1 : len(one) + 1] += one
        sequences = len(probabilities)
        times = self._curve.seconds(sequences * np.arange(1, widest + 2))
        best = int((np.cumsum(gains) - times * (self._tokens / self._seconds)).argmax())
        self._plain_s, self._pass_s = float(times[0]) / sequences, float(times[best]) / sequences
        return [min(best, len(one)) for one in probabilities]

    def observe(self, tokens: int, draft_s: float) -> None:
        """See `NodeBudget`."""
        self._tokens = self._decay * self._tokens + tokens
        self._seconds = self._decay * self._seconds + self._pass_s + draft_s
        self._gate.record((tokens - 1) * self._plain_s, self._pass_s - self._plain_s + draft_s)
