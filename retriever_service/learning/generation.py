"""Answers of one log as segments in memory: few at any time, however many appends made them.

New entries are a small segment; one that is not much larger than the next is joined with it, so each entry is moved a
few times only. Knows entries and segments; no files and no threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from retriever_service.datastore import EntryBatch, Segment, memory_segment, token_dtype

_MUCH_LARGER = 8


@dataclass(frozen=True, slots=True)
class _Piece:
    entries: EntryBatch
    segment: Segment


class Generation:
    """What one log holds.

    Args:
        path: of the log.
        vocab_size: of the target model.

    Attributes:
        path: as given.
        ids: of its answers.
        num_entries: of this server's partitions.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        self.path = path
        self.ids: set[bytes] = set()
        self.num_entries = 0
        self._dtype = token_dtype(vocab_size)
        self._pieces: dict[int, list[_Piece]] = {}

    def add(self, ids: Iterable[bytes], entries: Mapping[int, EntryBatch]) -> None:
        """More answers, and their entries by partition."""
        self.ids.update(ids)
        for partition, batch in entries.items():
            if len(batch) == 0:
                continue
            self.num_entries += len(batch)
            pieces = self._pieces.setdefault(partition, [])
            joined = [batch]
            while pieces and len(pieces[-1].entries) < _MUCH_LARGER * sum(map(len, joined)):
                joined.insert(0, pieces.pop().entries)
            pieces.append(self._piece(joined))

    def settle(self) -> None:
        """No more answers will come: one segment a partition."""
        for partition, pieces in self._pieces.items():
            if len(pieces) > 1:
                self._pieces[partition] = [self._piece([piece.entries for piece in pieces])]

    def segments(self) -> dict[int, list[Segment]]:
        """Those of each partition, the oldest first."""
        return {partition: [piece.segment for piece in pieces] for partition, pieces in self._pieces.items()}

    def _piece(self, parts: list[EntryBatch]) -> _Piece:
        entries = parts[0] if len(parts) == 1 else EntryBatch.concatenate(parts)
        return _Piece(entries, memory_segment(entries, self._dtype))
