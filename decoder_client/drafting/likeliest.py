"""The greatest logits of a row and their probabilities, compiled: one pass, one thread.

Takes arrays only; knows neither models nor drafts.
"""

from __future__ import annotations

import math

import numpy as np

from dresd.compiled import njit

_LANES = 1024


@njit(fastmath=True)
def _lane_maxima(line, maxima):
    """The greatest number of each lane; lane i holds the numbers i, i + lanes, i + 2 lanes, ..., a vector at a time."""
    lanes = len(maxima)
    for lane in range(lanes):
        maxima[lane] = line[lane]
    for begin in range(lanes, len(line), lanes):
        for lane in range(min(lanes, len(line) - begin)):
            number = line[begin + lane]
            maxima[lane] = number if number > maxima[lane] else maxima[lane]


@njit
def _insert(number, token, best, tokens):
    """Puts a number among the greatest so far, which are falling; it must be greater than the last of them."""
    at = len(best) - 1
    while at > 0 and best[at - 1] < number:
        best[at] = best[at - 1]
        tokens[at] = tokens[at - 1]
        at -= 1
    best[at] = number
    tokens[at] = token


@njit
def likeliest_tokens(scores, chosen, width):
    """The `width` greatest numbers of each chosen row, greatest first, and their share in the row's softmax.

    One thread, because on few cores a parallel reduction would wait for a core that the service computes on, and one
    pass over the row, by vector instructions. Beside the greatest numbers only the greatest of each lane count in the
    softmax's sum, so shares are too high, by a few per cent at most where they are spread over very many tokens.

    Args:
        scores: float32 [any, n] with n >= width.
        chosen: int64 [rows], of `scores`.
        width: at least 1.

    Returns:
        tokens: int64 [rows, width].
        shares: float32 [rows, width].
    """
    rows, count = len(chosen), scores.shape[1]
    tokens = np.zeros((rows, width), np.int64)
    shares = np.empty((rows, width), np.float32)
    best = np.empty(width, np.float32)
    maxima = np.empty(min(_LANES, count), np.float32)
    places = np.empty(width, np.int64)
    for row in range(rows):
        line = scores[chosen[row]]
        _lane_maxima(line, maxima)
        best[:] = -np.inf
        for lane in range(len(maxima)):
            if maxima[lane] > best[width - 1]:
                _insert(maxima[lane], lane, best, places)
        # A lane whose maximum is below all these holds none of the greatest numbers.
        greatest, bound = best[0], best[width - 1]
        best[:] = -np.inf
        whole = 0.0
        for lane in range(len(maxima)):
            if maxima[lane] < bound:
                whole += math.exp(maxima[lane] - greatest)
                continue
            for token in range(lane, count, len(maxima)):
                if line[token] > best[width - 1]:
                    _insert(line[token], token, best, tokens[row])
        for place in range(width):
            whole += math.exp(best[place] - greatest)
        for place in range(width):
            shares[row, place] = math.exp(best[place] - greatest) / whole
    return tokens, shares
