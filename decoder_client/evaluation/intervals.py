"""How sure a measured ratio is: 95% intervals by bootstrap over prompts.

Prompts are drawn with replacement; each draw gives one ratio of sums; the interval holds the middle 95% of them. Knows
numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decoder_client.evaluation.results import Interval

RESAMPLES = 10_000
_SEED = 0
_TAILS = (2.5, 97.5)


def ratio_of_sums(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    """sum(numerators) / sum(denominators), one element a prompt; 0 where the denominator is."""
    above, below = np.array(numerators, np.float64), np.array(denominators, np.float64)
    draws = _draws(len(above))
    return _interval(_divided(above.sum(), below.sum()), _divided(draws @ above, draws @ below))


def ratio_of_ratios(
    numerators: Sequence[float],
    denominators: Sequence[float],
    other_numerators: Sequence[float],
    other_denominators: Sequence[float],
) -> Interval:
    """`ratio_of_sums` of one method / that of another on the same prompts, which are drawn together."""
    rows = [np.array(row, np.float64) for row in (numerators, denominators, other_numerators, other_denominators)]
    draws = _draws(len(rows[0]))
    a, b, c, d = (draws @ row for row in rows)
    value = _divided(_divided(rows[0].sum(), rows[1].sum()), _divided(rows[2].sum(), rows[3].sum()))
    return _interval(value, _divided(_divided(a, b), _divided(c, d)))


def _draws(prompts: int) -> NDArray[np.float64]:
    """[RESAMPLES, prompts]: how often each draw holds each prompt; the same ones for every measure."""
    shares = np.full(prompts, 1.0 / prompts)
    return np.random.default_rng(_SEED).multinomial(prompts, shares, size=RESAMPLES).astype(np.float64)


def _divided(above: NDArray[np.float64] | np.float64, below: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
    above, below = np.asarray(above), np.asarray(below)
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)


def _interval(value: NDArray[np.float64], draws: NDArray[np.float64]) -> Interval:
    low, high = np.percentile(draws, _TAILS).tolist()
    return Interval(float(value), low, high)
