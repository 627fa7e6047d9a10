"""How much each source of drafts is believed: priors fitted once, then corrected by what the target really says.

The probability that token c follows a node is estimated as in a Dirichlet mixture: every source holds masses (an
entry, or an earlier place of the text, adds its mass to each node of its continuation), and

    P(c | node) = (sum_s w_s m_s(c) + e_d t(c) + o f(c)) / (sum_s w_s M_s + e_d + o)

where m_s(c) and M_s are source s's mass on c and on all tokens after the node, e_d is the evidence against what the
sources have seen, smaller with depth d, handed out again by the token table t, and f is what the target itself said in
the same place earlier in this sequence, if it was there, with weight o. The weights w_s, e and o follow the gradient
of the log likelihood of the target's tokens. Knows numbers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.local import LocalPlaces

DENSE, SPARSE, LOCAL = range(3)
SOURCES = ("dense", "sparse", "context")
"""The sources that hold masses, by column."""

# Logarithms, fitted on the answers of SmolLM2-135M-Instruct to 160 prompts of which the datastore held no answers.
_PRIOR = {"dense": 0.72, "sparse": 1.54, "context": 0.0, "escape": 0.14, "fresh": 0.22}
_ESCAPE_BY_DEPTH = -0.077
PAIR_SHARE = 0.76
SINGLE_SHARE = 0.5
"""Share of the evidence against what the sources have seen that the token table hands out again, where it knows the
token pair or only its last token."""
_LOCAL_BY_MATCH = np.array(
    [0.43, 1.08, 1.47, 1.64, 1.79, 1.87, 1.97, 2.06, 2.21, 2.33, 2.42, 2.54, 2.70, 2.86, 3.02, 3.25, 3.94]
)
_LOCAL_BY_SIMILARITY = 3.6
_LOCAL_BY_AGE = 0.14
# The same where keys are unknown.
_PLAIN_LOCAL_BY_MATCH = np.array(
    [-0.85, 0.60, 1.23, 1.42, 1.62, 1.73, 1.83, 1.94, 2.11, 2.24, 2.33, 2.42, 2.58, 2.74, 2.90, 3.12, 3.83]
)
_PLAIN_LOCAL_BY_AGE = -0.09
_RATE = 0.03
_ESCAPE_RATE = 0.02
_STEP_MAX = 0.1
_DRIFT_MAX = 5.0


def local_masses(places: LocalPlaces) -> NDArray[np.float64]:
    """float64 [m]: by the length of the match, the similarity of the keys where known, and the age."""
    ages = np.log1p(places.ages)
    if places.similarities is None:
        logs = _PLAIN_LOCAL_BY_MATCH[places.matches] + _PLAIN_LOCAL_BY_AGE * ages
    else:
        away = places.similarities.astype(np.float64) - 1.0
        logs = _LOCAL_BY_MATCH[places.matches] + _LOCAL_BY_SIMILARITY * away + _LOCAL_BY_AGE * ages
    masses: NDArray[np.float64] = np.exp(logs)
    return masses


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was known after one node when the target chose its token there.

    Attributes:
        masses: float64 [3], each source's mass on the target's token.
        totals: float64 [3], its mass on all tokens after the node.
        table: the token table's probability of the token.
        fresh: the target's own earlier probability of it; None if it was not in this place before.
        depth: of the node: 0 for the root.
    """

    masses: NDArray[np.float64]
    totals: NDArray[np.float64]
    table: float
    fresh: float | None
    depth: int


class SourceWeights:
    """The weights of one drafter, shared by all its sequences; they follow what it sees.

    Attributes:
        sources: float64 [3], w_s.
        fresh: o.
        escape_score: added to the acceptance model's score of the case that no child follows.
    """

    def __init__(self) -> None:
        self._prior = np.array(list(_PRIOR.values()))
        self._logs = self._prior.copy()
        self.escape_score = 0.0
        self._refresh()

    def _refresh(self) -> None:
        values = np.exp(self._logs)
        self.sources: NDArray[np.float64] = values[:3]
        self._escape, self.fresh = float(values[3]), float(values[4])

    def escape(self, depth: int) -> float:
        """e_d of a node at `depth`."""
        return self._escape * math.exp(_ESCAPE_BY_DEPTH * depth)

    def learn(self, seen: Sighting) -> None:
        """One step up the gradient of the log likelihood of the target's token."""
        escape = self.escape(seen.depth)
        fresh = 0.0 if seen.fresh is None else self.fresh
        parts = np.array([*(self.sources * seen.masses), escape * seen.table, fresh * (seen.fresh or 0.0)])
        totals = np.array([*(self.sources * seen.totals), escape, fresh])
        likelihood = parts.sum()
        if likelihood <= 0.0:
            # Nothing foresaw the token: the evidence against all sources was right.
            parts[3] = likelihood = escape
        gradient = parts / likelihood - totals / totals.sum()
        self._logs += np.clip(_RATE * gradient, -_STEP_MAX, _STEP_MAX)
        np.clip(self._logs, self._prior - _DRIFT_MAX, self._prior + _DRIFT_MAX, out=self._logs)
        self._refresh()

    def calibrate(self, expected: float, accepted: int) -> None:
        """Corrects what is expected of drafts by what came of one: the score of the case that nothing follows."""
        step = _ESCAPE_RATE * min(max(expected - accepted, -5.0), 5.0)
        self.escape_score = min(max(self.escape_score + step, -_DRIFT_MAX), _DRIFT_MAX)
