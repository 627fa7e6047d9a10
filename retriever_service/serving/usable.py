"""Whether the numbers of a request may be searched with, compiled. Takes arrays only; limits are `validation`'s."""

from __future__ import annotations

import math

import numpy as np

from dresd.compiled import njit


@njit
def are_usable(keys, tolerance, left_contexts, least_token):
    """Whether every key is finite and of length 1, within `tolerance`, or all zero; and no token below the least.

    Args:
        keys: float32 [B, dims].
        tolerance: of their lengths.
        left_contexts: int32 [B, w].
        least_token: allowed in them.
    """
    for query in range(len(keys)):
        square = np.float32(0.0)
        for dim in range(keys.shape[1]):
            square += keys[query, dim] * keys[query, dim]
        # What is not finite has no such length.
        if not (square == 0.0 or abs(math.sqrt(square) - 1.0) <= tolerance):
            return False
        for place in range(left_contexts.shape[1]):
            if left_contexts[query, place] < least_token:
                return False
    return True
