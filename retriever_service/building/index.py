"""Index: one task a partition, from its shuffled entries to a segment; and the token table from all blocks' samples.

A segment is written in a folder of its attempt, renamed into the datastore's when it is whole, and a record of it is
committed: what a killed attempt leaves is never published.
"""

from __future__ import annotations

import errno
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from retriever_service.building import blocks
from retriever_service.building.embedded import load_table
from retriever_service.building.shuffle import entries_of
from retriever_service.datastore import (
    FileRecord,
    SegmentRecord,
    TokenTableBuilder,
    save_token_table,
    segment_directory,
    write_partition,
)


@dataclass(frozen=True, slots=True)
class Indexer:
    """Writes segments; a picklable value for processes that share the disk.

    Attributes:
        shuffled: folder of the groups.
        groups: their number.
        records: folder of the segments' records.
        attempts: folder to write in, on the datastore's disk.
        datastore: folder of the segments.
        num_entries: of all partitions.
        codec: of the keys.
        vocab_size: of the model.
        seed: of the clustering.
    """

    shuffled: Path
    groups: int
    records: Path
    attempts: Path
    datastore: Path
    num_entries: int
    codec: str
    vocab_size: int
    seed: int

    def write(self, partition: int) -> int:
        """Writes a partition and commits its record; returns its entries."""
        name = segment_directory(partition)
        attempt = self.attempts / uuid.uuid4().hex
        attempt.mkdir()
        try:
            segment = write_partition(
                attempt / name,
                entries_of(self.shuffled, self.groups, partition),
                codec=self.codec,
                vocab_size=self.vocab_size,
                num_entries_total=self.num_entries,
                seed=self.seed,
            )
            if segment.num_entries:
                _put(attempt / name, self.datastore / name, attempt / "replaced")
        finally:
            shutil.rmtree(attempt, ignore_errors=True)
        blocks.commit(record_path(self.records, partition), segment.model_dump_json().encode())
        return segment.num_entries


def _put(made: Path, place: Path, aside: Path) -> None:
    """Renames a segment to its place; what is there is of another attempt, and may not have been whole."""
    with suppress(FileNotFoundError):
        place.rename(aside)
    try:
        made.rename(place)
    except OSError as error:
        # Another attempt at the same segment came between: its content is the same.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def record_path(records: Path, partition: int) -> Path:
    """Where the record of a partition's segment lies."""
    return records / f"partition-{partition:05d}.block"


def load_segment(records: Path, partition: int) -> SegmentRecord:
    """What was written of a partition."""
    return SegmentRecord.model_validate_json(blocks.load(record_path(records, partition)))


def segment_is_whole(records: Path, datastore: Path, partition: int) -> bool:
    """Whether a partition is written, and every byte of it as it was."""
    if not blocks.is_whole(record_path(records, partition)):
        return False
    segment = load_segment(records, partition)
    folder = datastore / segment.directory
    return all(
        (folder / name).is_file() and FileRecord.of(folder / name) == record for name, record in segment.files.items()
    )


def write_token_table(embedded: Path, num_blocks: int, place: Path, record: Path) -> int:
    """Writes what the model held likely after each token, and each pair of tokens, in the samples of all blocks.

    A record of the file is committed; returns 1.
    """
    builder = TokenTableBuilder()
    for block in range(num_blocks):
        builder.add(**load_table(embedded, block))
    save_token_table(place, builder.build())
    blocks.commit(record, FileRecord.of(place).model_dump_json().encode())
    return 1


def file_is_whole(place: Path, record: Path) -> bool:
    """Whether a file is there as its record says."""
    if not (blocks.is_whole(record) and place.is_file()):
        return False
    return FileRecord.of(place) == FileRecord.model_validate_json(blocks.load(record))
