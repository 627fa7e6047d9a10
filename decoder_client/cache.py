"""The key-value cache of a batch of sequences, which grows by whole draft trees and then keeps the accepted rows.

All layers are full-length, those with a sliding window too: the window is the mask's business, and a layer that had
dropped old rows could not take a rejected draft back. Rows are written into buffers with room to spare, so neither a
pass nor an acceptance copies the cache. Sequences of different lengths share one buffer: what lies behind a shorter
one's rows is hidden by the mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

_MIN_ROOM = 256


class _RoomyLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped here
    """A layer whose `keys` and `values` are views of the filled part of larger buffers."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Appends rows [B, heads, T, head_dim] and returns all rows."""
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
        self.show(end)
        return self.keys, self.values

    def move(self, sequences: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Copies row `sources[i]` of sequence `sequences[i]` to `targets[i]`, all at once."""
        self._key_rows[sequences, :, targets] = self._key_rows[sequences, :, sources]
        self._value_rows[sequences, :, targets] = self._value_rows[sequences, :, sources]

    def show(self, length: int) -> None:
        """Makes the first `length` rows the layer's."""
        self.keys = self._key_rows[:, :, :length]
        self.values = self._value_rows[:, :, :length]

    def select(self, sequences: Tensor) -> None:
        """Drops the sequences that are not named."""
        length = self.get_seq_length()
        self._key_rows = self._key_rows[sequences]
        self._value_rows = self._value_rows[sequences]
        self.show(length)


def _enlarged(rows: Tensor, used: int, needed: int) -> Tensor:
    batch, heads, _, width = rows.shape
    larger = rows.new_empty((batch, heads, needed + max(_MIN_ROOM, needed // 4), width))
    larger[:, :, :used] = rows[:, :, :used]
    # Hidden rows meet a weight of zero, but zero times NaN is NaN.
    larger[:, :, used:] = 0.0
    return larger


class TreeCache(DynamicCache):  # type: ignore[misc]  # transformers is untyped here
    """A cache for a target model's forward passes.

    Attributes:
        lengths: tokens kept of each sequence; before a pass the longest one's rows end where the pass writes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer_class_to_replicate = _RoomyLayer
        self.lengths = [0]

    @classmethod
    def join(cls, caches: Sequence[TreeCache]) -> TreeCache:
        """One cache of the sequences of several, in their order."""
        if len(caches) < 2:
            return caches[0] if caches else cls()
        joint = cls()
        joint.lengths = [length for cache in caches for length in cache.lengths]
        longest = max(joint.lengths)
        for index in range(len(caches[0].layers)):
            layers = [cache.layers[index] for cache in caches]
            joint.update(*(_stacked([getattr(layer, name) for layer in layers], longest) for name in _KINDS), index)
        return joint

    def keep(self, nodes: Sequence[Sequence[int]]) -> None:
        """Drops what a pass left behind but for each sequence's newest token and its accepted path.

        Args:
            nodes: of each sequence the accepted draft nodes, a path from the root; row 0 of the pass is the newest
                token, node i row i + 1.
        """
        begin = max(self.lengths)
        moves = []
        for sequence, (length, path) in enumerate(zip(self.lengths, nodes, strict=True)):
            for offset, row in enumerate([0, *(node + 1 for node in path)]):
                # What lies in order right behind the text is already in place.
                if begin + row != length + offset:
                    moves.append((sequence, begin + row, length + offset))
            self.lengths[sequence] = length + 1 + len(path)
        longest = max(self.lengths)
        moved: dict[torch.device, Tensor] = {}
        for layer in self.layers:
            if not layer.is_initialized:
                continue
            if moves:
                device = layer.keys.device
                if device not in moved:
                    moved[device] = torch.tensor(moves, device=device).T
                layer.move(*moved[device])
            layer.show(longest)

    def forget_pass(self) -> None:
        """Drops all that a pass left behind."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.show(max(self.lengths))

    def fill(self, length: int) -> None:
        """Notes that a pass over `length` tokens of plain text filled this cache of one sequence."""
        self.lengths[0] += length

    def select(self, sequences: Sequence[int]) -> None:
        """Keeps the named sequences only."""
        self.lengths = [self.lengths[sequence] for sequence in sequences]
        longest = max(self.lengths)
        for layer in self.layers:
            if layer.is_initialized:
                layer.select(torch.tensor(sequences, device=layer.keys.device))
                layer.show(longest)


_KINDS = ("keys", "values")


def _stacked(rows: list[Tensor], length: int) -> Tensor:
    """[B, heads, length, head_dim]: rows of B sequences, zeros behind the shorter ones."""
    first = rows[0]
    stacked = first.new_zeros((len(rows), first.shape[1], length, first.shape[3]))
    for sequence, own in enumerate(rows):
        stacked[sequence, :, : own.shape[2]] = own[0]
    return stacked
