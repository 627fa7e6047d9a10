"""How long a forward pass takes by the number of tokens in it, as measured on one device with one model.

Knows numbers; measuring is somebody else's business.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CostCurve:
    """T(n). Checks itself: ValueError says what is wrong.

    Attributes:
        tokens: in a pass, ascending, from 1; at least two.
        pass_seconds: a pass's time for each of them.
    """

    tokens: tuple[int, ...]
    pass_seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        ascending = all(low < high for low, high in zip(self.tokens, self.tokens[1:], strict=False))
        if len(self.tokens) < 2 or self.tokens[0] != 1 or not ascending or self.tokens[-1] > _MOST_TOKENS:
            raise ValueError(f"a cost curve needs numbers of tokens that ascend from 1, to {_MOST_TOKENS} at most")
        if len(self.pass_seconds) != len(self.tokens) or not all(0.0 < time < np.inf for time in self.pass_seconds):
            raise ValueError("a cost curve needs one positive time for each number of tokens")

    def seconds(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """float64 [n]: T of each number of tokens; between two measured ones, and beyond the last, on a line."""
        wanted = np.asarray(tokens, np.float64)
        times = np.interp(wanted, self.tokens, self.pass_seconds)
        (before, last), (earlier, latest) = self.tokens[-2:], self.pass_seconds[-2:]
        slope = max(0.0, (latest - earlier) / (last - before))
        result: NDArray[np.float64] = times + slope * np.maximum(wanted - last, 0.0)
        return result

    def to_json(self) -> str:
        """For `from_json`."""
        return json.dumps({"tokens": self.tokens, "pass_seconds": self.pass_seconds})

    @classmethod
    def from_json(cls, text: str) -> CostCurve:
        """Reads a curve; raises ValueError if it is none."""
        try:
            content = json.loads(text)
            tokens, times = content["tokens"], content["pass_seconds"]
            return cls(tuple(int(one) for one in _list(tokens)), tuple(float(one) for one in _list(times)))
        except (KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError("it does not hold a cost curve") from error


def _list(value: object) -> Sequence[float]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value
