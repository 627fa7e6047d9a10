"""Keys of a few states on a CPU, compiled: one call where array code makes a dozen, each cold after a model's pass.

Takes arrays only; what a key is, `reducer` says.
"""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit

MOST_ROWS = 64
"""More are better off with a matrix product of many rows at once."""


@njit(fastmath={"reassoc", "contract"})
def few_keys(states, weight, bias):
    """Keys of length 1, but for those of length 0.

    Args:
        states: float32 [rows, hidden_size].
        weight: float32 [dims, hidden_size].
        bias: float32 [dims].

    Returns:
        float32 [rows, dims].
    """
    rows, dims = len(states), len(bias)
    keys = np.empty((rows, dims), np.float32)
    for row in range(rows):
        squares = np.float32(0.0)
        for dim in range(dims):
            number = np.float32(0.0)
            for place in range(states.shape[1]):
                number += states[row, place] * weight[dim, place]
            number += bias[dim]
            keys[row, dim] = number
            squares += number * number
        if squares > 0.0:
            length = np.sqrt(squares)
            for dim in range(dims):
                keys[row, dim] /= length
    return keys
