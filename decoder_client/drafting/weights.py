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

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.evidence import Evidence
from decoder_client.drafting.fresh import FreshTable
from decoder_client.drafting.kernel import learn
from decoder_client.drafting.lookup import TableArrays

# Logarithms, fitted on the answers of SmolLM2-135M-Instruct to 160 prompts of which the datastore held no answers.
_PRIOR = (0.72, 1.54, 0.0, 0.14, 0.22)  # dense, sparse, context, e, o
_RATE = 0.03
_ESCAPE_RATE = 0.02
_STEP_MAX = 0.1
_DRIFT_MAX = 5.0
_LOWEST, _HIGHEST = np.array(_PRIOR) - _DRIFT_MAX, np.array(_PRIOR) + _DRIFT_MAX


class SourceWeights:
    """The weights of one drafter, shared by all its sequences; they follow what it sees.

    Attributes:
        values: float64 [5]: w_s, e and o.
        escape_score: added to the acceptance model's score of the case that no child follows.
    """

    def __init__(self) -> None:
        self._logs = np.array(_PRIOR)
        self.values: NDArray[np.float64] = np.exp(self._logs)
        self.escape_score = 0.0

    def learn(self, evidence: Evidence, chosen: Sequence[int], table: TableArrays, fresh: FreshTable) -> None:
        """Steps up the gradient of the log likelihood of the target's tokens, up to the first that nothing foresaw."""
        learn(
            evidence.paths,
            evidence.masses,
            evidence.previous,
            evidence.newest,
            np.array(chosen, np.int64),
            table,
            fresh.arrays,
            self._logs,
            _RATE,
            _STEP_MAX,
        )
        np.minimum(np.maximum(self._logs, _LOWEST, out=self._logs), _HIGHEST, out=self._logs)
        self.values = np.exp(self._logs)

    def calibrate(self, expected: float, accepted: int) -> None:
        """Corrects what is expected of drafts by what came of one: the score of the case that nothing follows."""
        step = _ESCAPE_RATE * min(max(expected - accepted, -5.0), 5.0)
        self.escape_score = min(max(self.escape_score + step, -_DRIFT_MAX), _DRIFT_MAX)
