"""The key of a position: the one definition that building and decoding share.

A hidden state is z-scored, projected on the principal components of the z-scored states and L2-normalised. The
z-score and the projection fold into one affine map, so a key costs one matrix product and one norm.

Knows arrays and, inside one method, torch tensors; no models, no datastores, no messages.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from decoder_client.errors import DecoderError
from decoder_client.key_kernel import MOST_ROWS, few_keys

if TYPE_CHECKING:
    import torch

# A dimension that varies less than this share of its own size is constant: half-precision states do not resolve it,
# and dividing by so small a deviation would drown the key in the rounding of the float32 affine map.
_CONSTANT_BELOW = 1e-4


class ReducerError(DecoderError):
    """The states or the bytes do not make a reducer, or a state does not fit it; says why in one sentence."""


class ReducerFit:
    """Mean and covariance of hidden states, accumulated in float64: memory does not depend on how many are seen."""

    def __init__(self, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        self.num_samples = 0
        self._mean = np.zeros(hidden_size)
        self._scatter = np.zeros((hidden_size, hidden_size))  # sum of outer products of deviations from the mean

    def update(self, states: NDArray[np.floating]) -> None:
        """Adds states [n, hidden_size].

        Raises:
            ReducerError: if the width differs or a value is NaN or infinite.
        """
        _check_states(states, self.hidden_size)
        if len(states) == 0:
            return
        batch = states.astype(np.float64)
        mean = batch.mean(axis=0)
        batch -= mean
        self._add(len(batch), mean, batch.T @ batch)

    def merge(self, other: ReducerFit) -> None:
        """Adds everything another fit has seen.

        Raises:
            ReducerError: if the other's states have another width.
        """
        if other.hidden_size != self.hidden_size:
            raise ReducerError(f"cannot merge fits of {self.hidden_size} and {other.hidden_size} dimensions")
        if other.num_samples:
            self._add(other.num_samples, other._mean, other._scatter)

    def _add(self, count: int, mean: NDArray[np.float64], scatter: NDArray[np.float64]) -> None:
        # Chan, Golub and LeVeque: pairwise combination, which does not lose digits where the mean is large.
        total = self.num_samples + count
        delta = mean - self._mean
        self._scatter += scatter
        self._scatter += np.outer(delta, delta * (self.num_samples * count / total))
        self._mean += delta * (count / total)
        self.num_samples = total

    def finish(self, dims: int) -> KeyReducer:
        """The reducer to `dims` numbers of what was seen. Dimensions that do not vary get weight 0.

        Raises:
            ReducerError: if `dims` is not in 1..hidden_size, there are not more samples than dims, or fewer
                dimensions than `dims` vary.
        """
        check_dims(dims, hidden_size=self.hidden_size, num_samples=self.num_samples)
        variance = np.diag(self._scatter) / self.num_samples
        varies = variance > (_CONSTANT_BELOW**2) * (variance + self._mean**2)
        num_varying = int(varies.sum())
        if num_varying < dims:
            raise ReducerError(
                f"only {num_varying} of {self.hidden_size} dimensions of the hidden states vary, "
                f"too few for keys of {dims} dimensions"
            )
        deviation = np.sqrt(variance[varies])
        correlation = self._scatter[np.ix_(varies, varies)] / self.num_samples / np.outer(deviation, deviation)
        values, vectors = np.linalg.eigh(correlation)
        components = vectors[:, ::-1][:, :dims].T
        # An eigenvector's sign is arbitrary; fixing it makes the same states give the same keys.
        largest = np.abs(components).argmax(axis=1)
        components = components * np.sign(components[np.arange(dims), largest])[:, None]
        weight = np.zeros((dims, self.hidden_size))
        weight[:, varies] = components / deviation
        return KeyReducer(
            weight=weight.astype(np.float32),
            bias=(-weight @ self._mean).astype(np.float32),
            explained_variance=float(values[::-1][:dims].sum() / values.sum()),
            num_samples=self.num_samples,
        )


def check_dims(dims: int, *, hidden_size: int, num_samples: int) -> None:
    """Raises `ReducerError` if `num_samples` states of `hidden_size` numbers cannot give keys of `dims` numbers."""
    if not 1 <= dims <= hidden_size:
        raise ReducerError(f"keys of {dims} dimensions cannot be made of hidden states of {hidden_size} dimensions")
    if num_samples <= dims:
        raise ReducerError(
            f"{num_samples} hidden states are too few to fit keys of {dims} dimensions: at least {dims + 1} are needed"
        )


@dataclass(frozen=True, eq=False)
class KeyReducer:
    """The affine map from a hidden state to a key before normalisation.

    Attributes:
        weight: float32 [dims, hidden_size].
        bias: float32 [dims].
        explained_variance: share of the z-scored states' variance that the key keeps, in 0..1.
        num_samples: states it was fitted on.
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    explained_variance: float
    num_samples: int
    _on_device: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def dims(self) -> int:
        """Numbers in a key."""
        return len(self.bias)

    @property
    def hidden_size(self) -> int:
        """Numbers in a hidden state."""
        return int(self.weight.shape[1])

    def reduce(self, states: NDArray[np.floating]) -> NDArray[np.float32]:
        """Keys float32 [n, dims] of states [n, hidden_size], of length 1; a key of length 0 stays 0.

        Raises:
            ReducerError: if the width differs or a value is NaN or infinite.
        """
        _check_states(states, self.hidden_size)
        keys: NDArray[np.float32] = states.astype(np.float32) @ self.weight.T + self.bias
        norms = np.linalg.norm(keys, axis=1, keepdims=True)
        np.divide(keys, norms, out=keys, where=norms > 0)
        return keys

    def reduce_torch(self, states: torch.Tensor) -> torch.Tensor:
        """Keys float16 [..., dims] of states [..., hidden_size], on the states' device.

        Raises:
            ReducerError: if the width differs. Values are not checked: that would wait for the device.
        """
        import torch

        if states.shape[-1] != self.hidden_size:
            raise ReducerError(
                f"a hidden state of {states.shape[-1]} dimensions, where {self.hidden_size} are expected"
            )
        if states.device not in self._on_device:
            self._on_device[states.device] = (
                torch.from_numpy(self.weight).to(states.device),
                torch.from_numpy(self.bias).to(states.device),
            )
        weight, bias = self._on_device[states.device]
        if states.device.type == "cpu" and states.ndim == 2 and len(states) <= MOST_ROWS:
            few = few_keys(states.float().contiguous().numpy(), weight.numpy(), bias.numpy())
            return torch.from_numpy(few).half()
        keys = torch.nn.functional.linear(states.float(), weight, bias)
        return torch.nn.functional.normalize(keys, dim=-1).half()

    @cached_property
    def _bytes(self) -> bytes:
        # Tensors rather than metadata: the order of metadata in a safetensors header is not fixed.
        data: bytes = save(
            {
                "weight": np.ascontiguousarray(self.weight),
                "bias": np.ascontiguousarray(self.bias),
                "explained_variance": np.array([self.explained_variance], np.float64),
                "num_samples": np.array([self.num_samples], np.int64),
            }
        )
        return data

    def to_bytes(self) -> bytes:
        """A safetensors file; the same reducer always gives the same bytes."""
        return self._bytes

    @cached_property
    def sha256(self) -> str:
        """Hex digest of `to_bytes`."""
        return hashlib.sha256(self._bytes).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyReducer:
        """Reads what `to_bytes` wrote.

        Raises:
            ReducerError: if the bytes are not a reducer.
        """
        try:
            tensors = load(data)
        except (SafetensorError, ValueError, KeyError, MemoryError) as error:
            raise ReducerError(f"not a reducer: {error}") from error
        try:
            weight, bias = tensors["weight"], tensors["bias"]
            explained_variance, num_samples = tensors["explained_variance"], tensors["num_samples"]
        except KeyError as error:
            raise ReducerError(f"not a reducer: tensor {error} is missing") from error
        if (
            weight.dtype != np.float32
            or bias.dtype != np.float32
            or weight.ndim != 2
            or bias.shape != weight.shape[:1]
            or explained_variance.shape != (1,)
            or num_samples.shape != (1,)
        ):
            raise ReducerError("not a reducer: its tensors have other types or shapes")
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise ReducerError("not a reducer: it holds NaN or infinite weights")
        return cls(weight, bias, float(explained_variance[0]), int(num_samples[0]))


def _check_states(states: NDArray[np.floating], hidden_size: int) -> None:
    if states.ndim != 2 or states.shape[1] != hidden_size:
        raise ReducerError(f"hidden states of shape {list(states.shape)}, where [n, {hidden_size}] is expected")
    if not np.isfinite(states).all():
        raise ReducerError("a hidden state holds NaN or infinite values")
