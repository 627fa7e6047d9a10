"""Ingest: corpus files to shards of documents, or of prompts to answer, as tasks that go on where they were stopped.

A unit of work is one large file or many small ones. Each shard that is committed tells how far its unit has come, so
a task that is run again reads on behind it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from retriever_service.building.corpus import BadRecord, PromptRecord, Record, read_source
from retriever_service.building.document import Document
from retriever_service.building.documents import ShardWriter, about_shard, content_hash
from retriever_service.building.errors import BuildError
from retriever_service.building.sources import Source, reading

if TYPE_CHECKING:
    from retriever_service.building.encoding import DocumentEncoder

_SHARD_TOKENS = 1 << 20
_UNIT_BYTES = 16 << 20
_UNIT_FILES = 256
_BAD_TOLD = 100
"""Of a shard, at most so many bad records are named."""


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """What decides which documents come out.

    Attributes:
        model: folder or hub name of the target.
        model_version: another one for other weights or another tokenizer under the same name.
        prompts: of each record, its prompt is wanted.
        prompt_keys: positions of prompts are stored.
        skip_bad: records that are no records are left out, like damaged ones.
    """

    model: str
    model_version: str
    prompts: bool
    prompt_keys: bool
    skip_bad: bool


@dataclass(slots=True)
class Reading:
    """What was read, and what became of it; adds up over shards.

    Attributes:
        documents: records read, by number of source.
        skipped: documents that give no entries (too short), or prompts as long as the model's window.
        split: documents longer than the model's window, cut into pieces.
        bad: records left out.
        bad_told: some of them: where, and what is wrong.
    """

    documents: dict[int, int] = field(default_factory=dict)
    skipped: int = 0
    split: int = 0
    bad: int = 0
    bad_told: list[str] = field(default_factory=list)

    def add(self, other: Reading) -> None:
        """Adds what another shard tells."""
        for source, number in other.documents.items():
            self.documents[source] = self.documents.get(source, 0) + number
        self.skipped += other.skipped
        self.split += other.split
        self.bad += other.bad
        self.bad_told = (self.bad_told + other.bad_told)[:_BAD_TOLD]

    def as_json(self) -> dict[str, object]:
        """As a shard tells it."""
        return {
            "documents": list(self.documents.items()),
            "skipped": self.skipped,
            "split": self.split,
            "bad": self.bad,
            "bad_told": self.bad_told,
        }

    @classmethod
    def of_shard(cls, path: Path) -> Reading:
        """What a shard tells."""
        told = about_shard(path)
        return cls(dict(told["documents"]), told["skipped"], told["split"], told["bad"], list(told["bad_told"]))


@dataclass(frozen=True, slots=True)
class Unit:
    """Sources read by one task: `first` is the number of the first of them in the corpus."""

    number: int
    first: int
    sources: tuple[Source, ...]

    def shards(self, folder: Path) -> Iterator[Path]:
        """Where its shards lie, or would lie."""
        return (folder / f"unit-{self.number:06d}-{shard:05d}.block" for shard in count())

    def committed(self, folder: Path) -> list[Path]:
        """Those of its shards that are there, in order, up to the first that is not."""
        found: list[Path] = []
        for path in self.shards(folder):
            if not path.exists():
                return found
            found.append(path)
        raise AssertionError  # there is no last number


def units_of(sources: Sequence[Source]) -> tuple[Unit, ...]:
    """Consecutive sources, few if they are large."""
    groups: list[list[Source]] = []
    size = 0
    for source in sources:
        if not groups or size + source.size > _UNIT_BYTES or len(groups[-1]) >= _UNIT_FILES:
            groups.append([])
            size = 0
        groups[-1].append(source)
        size += source.size
    firsts = [0]
    for group in groups:
        firsts.append(firsts[-1] + len(group))
    return tuple(Unit(number, firsts[number], tuple(group)) for number, group in enumerate(groups))


def is_ingested(unit: Unit, folder: Path) -> bool:
    """Whether all shards of a unit are committed."""
    shards = unit.committed(folder)
    return bool(shards) and bool(about_shard(shards[-1])["done"])


def ingest(unit: Unit, folder: Path, options: IngestOptions) -> int:
    """Reads what is left of a unit, and commits its shards; returns their number.

    Raises:
        BuildError: a source cannot be read, or holds what is not to be skipped.
    """
    committed = unit.committed(folder)
    source, position = about_shard(committed[-1])["next"] if committed else (0, 0)
    encoder = _encoder(options.model, options.model_version, options.prompt_keys)
    paths = (path for at, path in enumerate(unit.shards(folder)) if at >= len(committed))
    writer, told, shards = ShardWriter(), Reading(), len(committed)

    def commit(following: tuple[int, int], *, done: bool) -> None:
        nonlocal writer, told, shards
        writer.commit(next(paths), {**told.as_json(), "next": following, "done": done})
        writer, told, shards = ShardWriter(), Reading(), shards + 1

    for number in range(source, len(unit.sources)):
        whole = unit.first + number
        told.documents.setdefault(whole, 0)
        for at, item in _records(unit.sources[number], position):
            _take(item, encoder, options, writer, told, whole)
            if writer.tokens >= _SHARD_TOKENS:
                commit((number, at), done=False)
        position = 0
    commit((len(unit.sources), 0), done=True)
    return shards


@lru_cache(maxsize=1)
def _encoder(model: str, _version: str, prompt_keys: bool) -> DocumentEncoder:  # noqa: FBT001 - a part of the key
    from retriever_service.building.encoding import DocumentEncoder
    from retriever_service.building.models import load_for_encoding

    return DocumentEncoder(load_for_encoding(model), prompt_keys=prompt_keys)


def _records(source: Source, after: int) -> Iterator[tuple[int, Record | BadRecord]]:
    with source.open() as file:
        records = read_source(source, file, after)
        while True:
            with reading(source.name):
                item = next(records, None)
            if item is None:
                return
            yield item


def _take(
    item: Record | BadRecord,
    encoder: DocumentEncoder,
    options: IngestOptions,
    writer: ShardWriter,
    told: Reading,
    source: int,
) -> None:
    found = item if isinstance(item, BadRecord) else _encoded(item, encoder, prompts=options.prompts)
    if isinstance(found, BadRecord):
        if not (found.damaged or options.skip_bad):
            raise BuildError(f"{found.sentence} Or leave such records out with --skip-bad.")
        told.bad += 1
        told.bad_told = [*told.bad_told, found.sentence][:_BAD_TOLD]
        return
    told.documents[source] += 1
    for document, text in found:
        if not options.prompts:
            _add_document(document, encoder.max_length, writer, told)
        elif len(document.tokens) >= encoder.max_length:
            told.skipped += 1
        else:
            writer.add(document, identity=content_hash(document), text=text)


def _encoded(record: Record, encoder: DocumentEncoder, *, prompts: bool) -> list[tuple[Document, str]] | BadRecord:
    """Documents, and as what text a prompt is told of beside its answer."""
    try:
        if not prompts:
            return [(document, "") for document in encoder.documents(record)]
        prompt = encoder.prompt(record)
        return [
            (Document.of(prompt, []), record.prompt if isinstance(record, PromptRecord) else encoder.decode(prompt))
        ]
    except BuildError as error:
        return BadRecord(str(error), damaged=False)


def _add_document(document: Document, max_length: int, writer: ShardWriter, told: Reading) -> None:
    """Adds one document, in pieces if it is longer than the model's window."""
    if not document.stored.any():
        told.skipped += 1
        return
    told.split += len(document.tokens) > max_length
    identity = content_hash(document)
    for number, window in enumerate(document.windows(max_length)):
        if window.stored.any():
            # Equal documents are cut at the same places.
            piece = hashlib.sha256(identity + json.dumps(number).encode()).digest()[: len(identity)]
            writer.add(window, identity=piece)
