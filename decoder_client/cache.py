"""The key-value cache of one sequence, which grows by whole draft trees and then keeps the accepted rows.

All layers are full-length, those with a sliding window too: the window is the mask's business, and a layer that had
dropped old rows could not take a rejected draft back. Rows are written into buffers with room to spare, so neither a
pass nor an acceptance copies the cache.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

_MIN_ROOM = 256


class _RoomyLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped here
    """A layer whose `keys` and `values` are views of the filled part of larger buffers."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Appends rows [1, heads, T, head_dim] and returns all rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._key_rows = key_states[:, :, :0]
            self._value_rows = value_states[:, :, :0]
        begin = self.get_seq_length()
        end = begin + key_states.shape[-2]
        if end > self._key_rows.shape[-2]:
            self._key_rows = _enlarged(self._key_rows, begin, end)
            self._value_rows = _enlarged(self._value_rows, begin, end)
        self._key_rows[:, :, begin:end] = key_states
        self._value_rows[:, :, begin:end] = value_states
        self._show(end)
        return self.keys, self.values

    def keep(self, begin: int, rows: Tensor | None, count: int) -> None:
        """Keeps the first `begin` rows and `count` more: those at `rows`, or the next ones for None."""
        if not self.is_initialized:
            return
        if rows is not None:
            rows = rows.to(self._key_rows.device)
            self._key_rows[:, :, begin : begin + count] = self._key_rows[:, :, rows]
            self._value_rows[:, :, begin : begin + count] = self._value_rows[:, :, rows]
        self._show(begin + count)

    def _show(self, length: int) -> None:
        self.keys = self._key_rows[:, :, :length]
        self.values = self._value_rows[:, :, :length]


def _enlarged(rows: Tensor, used: int, needed: int) -> Tensor:
    batch, heads, _, width = rows.shape
    larger = rows.new_empty((batch, heads, needed + max(_MIN_ROOM, needed // 4), width))
    larger[:, :, :used] = rows[:, :, :used]
    return larger


class TreeCache(DynamicCache):  # type: ignore[misc]  # transformers is untyped here
    """A cache for a target model's forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_class_to_replicate = _RoomyLayer

    def keep(self, length: int, nodes: list[int]) -> None:
        """Drops what a pass over a draft left behind, but for the accepted path.

        Args:
            length: rows before the pass.
            nodes: accepted draft nodes, a path from the root; node i lies in row `length` + 1 + i.
        """
        rows = None
        # A path that lies at the front of the draft is already in place.
        if nodes != list(range(len(nodes))):
            rows = torch.tensor([length + 1 + node for node in nodes])
        moved: dict[torch.device, Tensor] = {}
        for layer in self.layers:
            at = rows
            if at is not None and layer.is_initialized:
                if layer.keys.device not in moved:
                    moved[layer.keys.device] = at.to(layer.keys.device)
                at = moved[layer.keys.device]
            layer.keep(length + 1, at, len(nodes))
