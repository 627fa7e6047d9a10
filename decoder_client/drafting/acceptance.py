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


@dataclass(frozen=True, slots=True)
class FoldedModel:
    """An acceptance model whose standardisation is folded into its weights.

    Attributes:
        arrays: hidden [FEATURES, h], hidden bias [h], out [h], direct [FEATURES] and bias, for features as they are.
        escape: the score of the case that no child follows.
    """

    arrays: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float]
    escape: float


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

    def folded(self) -> FoldedModel:
        """The same for compiled code."""
        center, scale = self.center.astype(np.float64), self.scale.astype(np.float64)
        hidden, direct = self.hidden.astype(np.float64) / scale[:, None], self.direct.astype(np.float64) / scale
        arrays = (
            np.ascontiguousarray(hidden),
            self.hidden_bias - center @ hidden,
            self.out.astype(np.float64),
            direct,
            float(self.bias[0] - center @ direct),
        )
        return FoldedModel(arrays, float(self.escape[0]))


@cache
def fitted_model() -> FoldedModel:
    """The model that comes with this package; `scripts/fit_acceptance.py` fitted it."""
    content = resources.files(__package__).joinpath("acceptance.safetensors").read_bytes()
    return AcceptanceModel(**load(content)).folded()
