"""Some records of a corpus, encoded, to tell from them how large the whole is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from retriever_service.building.config import BuildConfig
from retriever_service.building.corpus import BadRecord, Record, read_source
from retriever_service.building.document import Document
from retriever_service.building.encoding import DocumentEncoder
from retriever_service.building.errors import BuildError
from retriever_service.building.models import load_for_encoding
from retriever_service.building.sources import Source, reading

_SAMPLE_BYTES = 4 << 20
_SAMPLE_FILES = 32
_SAMPLE_RECORDS = 2000
"""Of a file, at most."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Some documents (or prompts) of a corpus.

    Attributes:
        lengths: tokens of each.
        entries: of all.
        share: of the corpus' bytes that they are.
    """

    lengths: tuple[int, ...]
    entries: int
    share: float


def take_sample(sources: Sequence[Source], model: str, config: BuildConfig) -> Sample:
    """Encodes some records of some files, evenly spread over the corpus; a task.

    Raises:
        BuildError: a file cannot be read.
    """
    encoder = DocumentEncoder(load_for_encoding(model), prompt_keys=config.prompt_keys)
    chosen = sources[:: max(len(sources) // _SAMPLE_FILES, 1)]
    lengths: list[int] = []
    entries, read = 0, 0.0
    for source in chosen:
        records = _Records(source, _SAMPLE_BYTES // len(chosen))
        for item in records:
            for document in _documents(item, encoder, respond=config.respond):
                for window in document.windows(encoder.max_length):
                    lengths.append(len(window.tokens))
                    entries += int(window.stored.sum())
        read += records.bytes_read
    return Sample(tuple(lengths), entries, min(read / max(sum(source.size for source in sources), 1), 1.0))


class _Records:
    """The first records of a file, about `most` bytes of them; afterwards, how many bytes they were."""

    def __init__(self, source: Source, most: int) -> None:
        self._source = source
        self._most = most
        self.bytes_read = float(source.size)

    def __iter__(self) -> Iterator[Record | BadRecord]:
        source = self._source
        with reading(source.name), source.open() as file:
            rows = _rows_of(file) if source.suffix == ".parquet" else 0
            for position, item in read_source(source, file):
                yield item
                done = source.size * position / max(rows, 1) if rows else float(file.tell())
                if done >= self._most or position >= _SAMPLE_RECORDS:
                    self.bytes_read = min(done, source.size)
                    return


def _rows_of(file: BinaryIO) -> int:
    import pyarrow.parquet

    return int(pyarrow.parquet.read_metadata(file).num_rows)


def _documents(item: Record | BadRecord, encoder: DocumentEncoder, *, respond: bool) -> list[Document]:
    """What a record gives; nothing for those that the build itself will complain about."""
    try:
        if isinstance(item, BadRecord):
            return []
        if respond:
            return [Document.of(encoder.prompt(item), [])]
        return [document for document in encoder.documents(item) if document.stored.any()]
    except BuildError:
        return []
