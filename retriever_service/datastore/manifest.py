"""The manifest: what a datastore says about itself, in one JSON file that is written last.

A folder without one is no datastore (an interrupted build leaves none). It ends with a checksum of itself, so that a
flipped bit or an edit in it is found as one in any other file is. Names, sizes and ranges are checked here; what the
files hold is checked by those who read them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.fields import (
    BuildId,
    Codec,
    Command,
    Count,
    Model,
    Nprobe,
    PlainName,
    Recipe,
    SegmentEntries,
    Sha256,
    Share,
    Text,
    Window,
)
from retriever_service.datastore.files import REBUILD_HINT, read_bytes, replacing, sha256_of
from retriever_service.datastore.tokens import TokenDtype, token_dtype
from retriever_service.echo import echoed

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
CHECKSUM_FIELD = "checksum"
REDUCER_FILE = "reducer.safetensors"
TOKEN_TABLE_FILE = "token_table.safetensors"  # noqa: S105 - a file's name
ROUTING_FILE = "routing.safetensors"
DATASET_FILES = (REDUCER_FILE, ROUTING_FILE, TOKEN_TABLE_FILE)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(_Record):
    """One file: bytes and sha256 (hex)."""

    size: Count
    sha256: Sha256

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """Measures a file that is there; raises OSError."""
        return cls(size=path.stat().st_size, sha256=sha256_of(path))


class SegmentRecord(_Record):
    """One immutable index of entries: a folder directly in the datastore's.

    `recall` is the share of the true 50 nearest keys of the same next token that a search finds, over a sample.
    """

    directory: PlainName
    num_entries: SegmentEntries
    files: dict[PlainName, FileRecord]
    recall: Share


class TuningRecord(_Record):
    """How `nprobe` was chosen: the least that finds `target_recall` of the `neighbors` true nearest keys, with a
    confidence of 95%.

    `recall` is what it finds (with its standard error), `every_list_recall` what a search of all
    lists would (what is missing there is the codec's), both over `held_out_keys` keys.
    """

    target_recall: Share
    neighbors: Count
    recall: Share
    standard_error: Share
    every_list_recall: Share
    held_out_keys: Count


class PartitionRecord(_Record):
    """A partition is a list of segments: one of a build with entries there, and one more of each addition to it."""

    index: Count
    segments: list[SegmentRecord]

    @property
    def num_entries(self) -> int:
        """Entries in all segments."""
        return sum(segment.num_entries for segment in self.segments)


class CorpusFile(_Record):
    """One input file and the documents read from it."""

    name: Text
    size: Count
    sha256: Sha256
    documents: Count


class CorpusProvenance(_Record):
    """What the entries were made from.

    `skipped` documents gave no entries; `split` ones were longer than the model's window and cut into pieces;
    `duplicates` were equal to another; `bad` records could not be read.
    """

    files: list[CorpusFile]
    documents: Count
    tokens: Count
    skipped: Count = 0
    split: Count = 0
    duplicates: Count = 0
    bad: Count = 0


class SourceRecord(_Record):
    """A datastore that this one's entries were read back from: its keys are those that the source's codec kept.

    `recall` is the source's own, over all its entries; losses add up.
    """

    build_id: BuildId
    num_entries: Count
    codec: Codec
    recall: Share

    @classmethod
    def of(cls, source: Manifest) -> SourceRecord:
        """Describes a datastore as a source."""
        return cls(build_id=source.build_id, num_entries=source.num_entries, codec=source.codec, recall=source.recall)


class Manifest(_Record):
    """Everything a reader needs to know before it opens any other file.

    `nprobe` is the default number of inverted lists searched within the next token's (0: all of them, exact), and
    `tuning` is how it was chosen, where it was.
    `files` records the files of the whole datastore, the segments those of their own folder. `made_from` names the
    datastores that entries were read back from, none for a build from a corpus.
    """

    format_version: int = FORMAT_VERSION
    build_id: BuildId
    model: Model
    key_recipe: Recipe
    corpus: CorpusProvenance
    continuation_length: Window
    left_context_length: Window
    token_dtype: TokenDtype
    codec: Codec
    nprobe: Nprobe
    tuning: TuningRecord | None = None
    num_entries: Count
    files: dict[PlainName, FileRecord]
    partitions: Annotated[list[PartitionRecord], Field(min_length=1)]
    versions: dict[Text, Text]
    command: Command
    created: Text
    made_from: list[SourceRecord] = []

    @property
    def recall(self) -> float:
        """Of all segments, weighted by entries; 1 without entries."""
        segments = [segment for partition in self.partitions for segment in partition.segments]
        found = sum(segment.recall * segment.num_entries for segment in segments)
        return found / self.num_entries if self.num_entries else 1.0

    @property
    def total_bytes(self) -> int:
        """Of all files but the manifest's own."""
        segments = [segment for partition in self.partitions for segment in partition.segments]
        files = [*self.files.values(), *(file for segment in segments for file in segment.files.values())]
        return sum(file.size for file in files)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Manifest:
        if self.format_version != FORMAT_VERSION:
            raise ValueError(f"format_version must be {FORMAT_VERSION}")
        if [partition.index for partition in self.partitions] != list(range(len(self.partitions))):
            raise ValueError("partitions must be numbered from 0 without a gap")
        if sum(partition.num_entries for partition in self.partitions) != self.num_entries:
            raise ValueError("num_entries must be the sum over the partitions")
        if self.token_dtype != token_dtype(self.model.vocab_size):
            raise ValueError(f"token_dtype must be {token_dtype(self.model.vocab_size)} for this vocabulary")
        if set(self.files) != set(DATASET_FILES):
            raise ValueError(f"files must be {', '.join(DATASET_FILES)}")
        if self.key_recipe.dims > self.model.hidden_size:
            raise ValueError("dims must be at most hidden_size")
        if self.key_recipe.reducer_hash != self.files[REDUCER_FILE].sha256:
            raise ValueError(f"reducer_hash must be the sha256 of {REDUCER_FILE}")
        folders = [segment.directory for partition in self.partitions for segment in partition.segments]
        if len(set(folders)) != len(folders):
            raise ValueError("partitions must not share a folder")
        return self

    def partitions_of(self, ordinal: int) -> list[int]:
        """What one of many servers holds that are numbered from 0: with P partitions the one of its number modulo P."""
        return [ordinal % len(self.partitions)]


def read_manifest(directory: Path) -> Manifest:
    """Reads and checks a datastore's manifest.

    Raises:
        DatastoreError: no folder, no manifest, not JSON, a newer format, another content than was written, or fields
            that do not fit together.
    """
    path = directory / MANIFEST_FILE
    try:
        is_folder, is_file = directory.is_dir(), path.is_file()
    except OSError as error:
        raise DatastoreError(
            f"{echoed(directory)} cannot be read: {error.strerror}.", "Give the folder that the build wrote with --out."
        ) from error
    if not is_folder:
        raise DatastoreError(
            f"{echoed(directory)} is not a folder.", "Give the folder that the build wrote with --out."
        )
    if not is_file:
        raise DatastoreError(
            f"{directory} has no {MANIFEST_FILE}, so it is not a complete datastore.",
            "Was the build interrupted? Build it again.",
        )
    return parse_manifest(read_bytes(path), str(path))


def parse_manifest(written: bytes, place: str) -> Manifest:
    """A manifest from the bytes of its file, which lies at `place`.

    Raises:
        DatastoreError: as for `read_manifest`.
    """
    content = _content_of(written, place)
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise DatastoreError(
            f"{place} is not a valid manifest: {echoed(field)}: {echoed(first['msg'])}.", REBUILD_HINT
        ) from error


def _content_of(written: bytes, place: str) -> dict[str, object]:
    """What the file says, of this format and with the checksum it was written with."""
    try:
        loaded: object = json.loads(written)
        content = loaded if isinstance(loaded, dict) else {}
        is_as_written = content.pop(CHECKSUM_FIELD, None) == manifest_checksum(content)
    except (ValueError, RecursionError) as error:
        raise DatastoreError(f"{place} is not valid JSON: {error}.", REBUILD_HINT) from error
    version = content.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DatastoreError(f"{place} states no format version.", REBUILD_HINT)
    if version > FORMAT_VERSION:
        raise DatastoreError(
            f"{place} has format {echoed(version)}; this version reads formats up to {FORMAT_VERSION}.",
            "Install a newer dresd, or build the datastore with this one.",
        )
    if not is_as_written:
        raise DatastoreError(f"{place} is not as it was written: its {CHECKSUM_FIELD} is another.", REBUILD_HINT)
    return content


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes the manifest beside its place, syncs and renames it; raises OSError."""
    content = manifest.model_dump(mode="json")
    content[CHECKSUM_FIELD] = manifest_checksum(content)
    with replacing(directory / MANIFEST_FILE) as beside:
        beside.write_bytes(_laid_out(content))


def is_laid_out_as_written(directory: Path) -> bool:
    """Whether every byte of a readable manifest is the one that `write_manifest` writes for what it says.

    White space, and what JSON may write in several ways, is no part of what a manifest says.
    """
    written = read_bytes(directory / MANIFEST_FILE)
    return written == _laid_out(json.loads(written))


def _laid_out(content: Mapping[str, object]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode("ascii")


def manifest_checksum(content: Mapping[str, object]) -> str:
    """sha256, hex, of a manifest's JSON object without its checksum; how the file is laid out does not matter."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
