"""The key-value cache of a batch of sequences, which grows by whole draft trees and then keeps the accepted rows.

All layers are full-length, those with a sliding window too: the window is the mask's business, and a layer that had
dropped old rows could not take a rejected draft back. Rows are written into buffers with room to spare, so neither a
pass nor an acceptance copies the cache. The buffers of many layers lie in one tensor, so that an acceptance moves its
rows in all of them at once. Sequences of different lengths share one buffer: what lies behind a shorter one's rows is
hidden by the mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

_MIN_ROOM = 256
_MOST_TOGETHER = 64 << 20
"""Bytes of buffers that lie in one tensor, about: they are held twice while they are put there."""


class _RoomyLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped here
    """A layer whose `keys` and `values` are views of the filled part of larger buffers, as of the latest pass.

    Attributes:
        length: rows kept, which may be less than the latest pass left.
        shared: the tensors, shared with other layers, of which its buffers are parts; none if they stand alone.
    """

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Appends rows [B, heads, T, head_dim] and returns all rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.replace_buffers(key_states[:, :, :0], value_states[:, :, :0])
            self.length = 0
        begin, end = self.length, self.length + key_states.shape[-2]
        if end > self._key_rows.shape[-2]:
            self.replace_buffers(_enlarged(self._key_rows, begin, end), _enlarged(self._value_rows, begin, end))
        self._key_rows[:, :, begin:end] = key_states
        self._value_rows[:, :, begin:end] = value_states
        self.length = end
        self.keys, self.values = self._key_rows[:, :, :end], self._value_rows[:, :, :end]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Rows kept."""
        return self.length if self.is_initialized else 0

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values with the room behind them, [B, heads, room, head_dim]."""
        return self._key_rows, self._value_rows

    def replace_buffers(self, keys: Tensor, values: Tensor, shared: tuple[Tensor, ...] = ()) -> None:
        """Takes other buffers of the same content, perhaps parts of `shared` ones."""
        self._key_rows, self._value_rows, self.shared = keys, values, shared

    def select(self, sequences: Tensor) -> None:
        """Drops the sequences that are not named."""
        self.replace_buffers(self._key_rows[sequences], self._value_rows[sequences])


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
            kept = [[rows[:, :, : layer.length] for rows in layer.buffers] for layer in layers]
            joint.update(*(_stacked(list(rows), longest) for rows in zip(*kept, strict=True)), index)
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
        if moves:
            self._move(torch.tensor(moves).T)
        self.forget_pass()

    def _move(self, moves: Tensor) -> None:
        """Copies rows within every buffer, all at once: int64 [3, n], sequences, sources and targets."""
        layers = [layer for layer in self.layers if layer.is_initialized]
        if not all(layer.shared for layer in layers):
            _put_together(layers)
        moved: dict[torch.device, Tensor] = {}
        for buffers in {id(shared): shared for layer in layers for shared in layer.shared}.values():
            if buffers.device not in moved:
                moved[buffers.device] = moves.to(buffers.device)
            sequences, sources, targets = moved[buffers.device]
            if buffers.shape[1] == 1:
                buffers.index_copy_(3, targets, buffers.index_select(3, sources))
            else:
                buffers[:, sequences, :, targets] = buffers[:, sequences, :, sources]

    def forget_pass(self) -> None:
        """Drops all that a pass left behind the longest sequence."""
        longest = max(self.lengths)
        for layer in self.layers:
            layer.length = longest

    def fill(self, length: int) -> None:
        """Notes that a pass over `length` tokens of plain text filled this cache of one sequence."""
        self.lengths[0] += length

    def select(self, sequences: Sequence[int]) -> None:
        """Keeps the named sequences only."""
        self.lengths = [self.lengths[sequence] for sequence in sequences]
        for layer in self.layers:
            if layer.is_initialized:
                layer.select(torch.tensor(sequences, device=layer.keys.device))
        self.forget_pass()


def _put_together(layers: Sequence[_RoomyLayer]) -> None:
    """Makes the layers' buffers parts of tensors [layers, B, heads, room, head_dim], of as few as may be."""
    alike: dict[object, list[_RoomyLayer]] = {}
    for layer in layers:
        kind = tuple((rows.device, rows.dtype, rows.shape) for rows in layer.buffers)
        alike.setdefault(kind, []).append(layer)
    for members in alike.values():
        size = sum(rows.numel() * rows.element_size() for rows in members[0].buffers)
        at_once = max(1, _MOST_TOGETHER // max(size, 1))
        for begin in range(0, len(members), at_once):
            some = members[begin : begin + at_once]
            shared = tuple(torch.stack(rows) for rows in zip(*(layer.buffers for layer in some), strict=True))
            for layer, keys, values in zip(some, *shared, strict=True):
                layer.replace_buffers(keys, values, shared)


def _stacked(rows: list[Tensor], length: int) -> Tensor:
    """[B, heads, length, head_dim]: rows of B sequences, zeros behind the shorter ones."""
    first = rows[0]
    stacked = first.new_zeros((len(rows), first.shape[1], length, first.shape[3]))
    for sequence, own in enumerate(rows):
        stacked[sequence, :, : own.shape[2]] = own[0]
    return stacked
