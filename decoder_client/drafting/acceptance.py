"""How likely the target is to go on with each of a node's children: a small network over what the sources hold.

The mixture of `weights` is the first guess; the network, fitted on answers whose tokens are known, corrects it by how
much evidence each source has, how its shares agree with the others', and how deep the node lies. One node's children
and the case that none of them follows share probability 1 by their scores' exponentials. Knows numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

_HAIR = 1e-4
_LEAST, _MOST = np.float32(-20.0), np.float32(20.0)

FEATURES = 25
"""Of a child."""

MASSES, TOTALS = slice(0, 3), slice(3, 6)
FRESH, TABLE, MIXTURE, FROM_TABLES, IS_FRESH, IS_PAIR, IS_KNOWN = range(6, 13)
"""Columns of what is known of a child:

- `MASSES`: each source's weighted mass on it;
- `TOTALS`: the same on all children of its parent;
- `FRESH`: what the target said of it in this sequence in the same place, 0 if nothing;
- `TABLE`: the token table's probability of it;
- `MIXTURE`: its probability by `weights`;
- `FROM_TABLES`: the mass that both tables add;
- `IS_FRESH`: 1 if the target said anything there, else 0;
- `IS_PAIR`: 1 if the table knows the token pair there, 0 if only the last token;
- `IS_KNOWN`: 1 if it knows the place at all.
"""
COLUMNS = 13


def features(children: NDArray[np.float32], depth: int) -> NDArray[np.float32]:
    """float32 [n, FEATURES] of children [n, COLUMNS] of nodes at `depth`."""
    made = np.empty((len(children), FEATURES), np.float32)
    scales = children[:, FRESH : MIXTURE + 1]
    made[:, 0:3] = children[:, MASSES]
    made[:, 6:9] = children[:, TOTALS]
    made[:, 9:12] = scales
    np.divide(children[:, MASSES], children[:, TOTALS] + np.float32(1e-9), out=made[:, 3:6])
    made[:, 16:19] = made[:, 3:6]
    made[:, :12] += np.float32(_HAIR)
    np.log(made[:, :12], out=made[:, :12])
    made[:, 12] = 1.0 - children[:, IS_FRESH]
    made[:, 13] = children[:, IS_PAIR]
    made[:, 14] = 1.0 - children[:, IS_KNOWN]
    made[:, 15] = depth / 8.0
    made[:, 19:22] = scales
    np.log1p(children[:, TOTALS], out=made[:, 22:25])
    return made


def origins(children: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64 [n, 4]: what each child's mixture is made of, summing to 1: the sources' masses, the tables'."""
    parts = children[:, [0, 1, 2, FROM_TABLES]].astype(np.float64)
    parts /= np.maximum(parts.sum(axis=1, keepdims=True), 1e-30)
    return parts


@dataclass(frozen=True, slots=True)
class AcceptanceModel:
    """One hidden layer beside a linear one.

    Attributes:
        center: float32 [FEATURES], subtracted from features.
        scale: float32 [FEATURES], divides them.
        hidden: float32 [FEATURES, h].
        hidden_bias: float32 [h].
        out: float32 [h].
        direct: float32 [FEATURES].
        bias: float32 [1].
        escape: float32 [1], the score of the case that no child follows.
    """

    center: NDArray[np.float32]
    scale: NDArray[np.float32]
    hidden: NDArray[np.float32]
    hidden_bias: NDArray[np.float32]
    out: NDArray[np.float32]
    direct: NDArray[np.float32]
    bias: NDArray[np.float32]
    escape: NDArray[np.float32]

    def scores(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 [n]: of children, comparable with `escape`."""
        standard = (features - self.center) / self.scale
        hidden = np.tanh(standard @ self.hidden + self.hidden_bias)
        scores = standard @ self.direct + hidden @ self.out + self.bias
        return np.minimum(np.maximum(scores, _LEAST), _MOST)


@cache
def fitted_model() -> AcceptanceModel:
    """The model that comes with this package; `scripts/fit_acceptance.py` fitted it."""
    return AcceptanceModel(**load(resources.files(__package__).joinpath("acceptance.safetensors").read_bytes()))
