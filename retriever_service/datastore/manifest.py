"""The manifest: what a datastore says about itself, in one JSON file that is written last.

A folder without one is no datastore (an interrupted build leaves none). Its names and sizes are checked here; what
the files hold is checked by those who read them.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dresd.identity import KeyRecipe, ModelIdentity
from retriever_service.datastore.codecs import CODECS
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.files import REBUILD_HINT, read_bytes, replacing, sha256_of
from retriever_service.datastore.tokens import TokenDtype, token_dtype

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
REDUCER_FILE = "reducer.safetensors"
TOKEN_TABLE_FILE = "token_table.safetensors"  # noqa: S105 - a file's name
ROUTING_FILE = "routing.safetensors"
DATASET_FILES = (REDUCER_FILE, ROUTING_FILE, TOKEN_TABLE_FILE)


def _plain_name(name: str) -> str:
    # A manifest is data from elsewhere: it must not lead outside the datastore's folder.
    if name in {"", ".", ".."} or PurePosixPath(name).name != name or "\\" in name or "\0" in name:
        raise ValueError("must be a plain file name")
    return name


def _known_codec(name: str) -> str:
    if name not in CODECS:
        raise ValueError(f"must be one of {', '.join(CODECS)}")
    return name


PlainName = Annotated[str, AfterValidator(_plain_name)]
Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


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
    num_entries: Count
    files: dict[PlainName, FileRecord]
    recall: Annotated[float, Field(ge=0.0, le=1.0)]


class PartitionRecord(_Record):
    """A partition is a list of segments (today one; none when it holds no entries)."""

    index: Count
    segments: list[SegmentRecord]

    @property
    def num_entries(self) -> int:
        """Entries in all segments."""
        return sum(segment.num_entries for segment in self.segments)


class CorpusFile(_Record):
    """One input file and the documents read from it."""

    name: str
    size: Count
    sha256: Sha256
    documents: Count


class CorpusProvenance(_Record):
    """What the entries were made from.

    `skipped` documents gave no entries; `split` ones were longer than the model's window and cut into pieces.
    """

    files: list[CorpusFile]
    documents: Count
    tokens: Count
    skipped: Count = 0
    split: Count = 0


class Manifest(_Record):
    """Everything a reader needs to know before it opens any other file.

    `nprobe` is the default number of inverted lists searched within the next token's (0: all of them, exact).
    `files` records the files of the whole datastore, the segments those of their own folder.
    """

    format_version: int = FORMAT_VERSION
    build_id: Annotated[str, Field(min_length=1)]
    model: ModelIdentity
    key_recipe: KeyRecipe
    corpus: CorpusProvenance
    continuation_length: Annotated[int, Field(ge=1)]
    left_context_length: Annotated[int, Field(ge=1)]
    token_dtype: TokenDtype
    codec: Annotated[str, AfterValidator(_known_codec)]
    nprobe: Count
    num_entries: Count
    files: dict[PlainName, FileRecord]
    partitions: Annotated[list[PartitionRecord], Field(min_length=1)]
    versions: dict[str, str]
    command: str
    created: str

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
        return self


def read_manifest(directory: Path) -> Manifest:
    """Reads and checks a datastore's manifest.

    Raises:
        DatastoreError: no folder, no manifest, not JSON, a newer format, or fields that do not fit together.
    """
    path = directory / MANIFEST_FILE
    if not directory.is_dir():
        raise DatastoreError(f"{directory} is not a folder.", "Give the folder that the build wrote with --out.")
    if not path.is_file():
        raise DatastoreError(
            f"{directory} has no {MANIFEST_FILE}, so it is not a complete datastore.",
            "Was the build interrupted? Build it again.",
        )
    try:
        content = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise DatastoreError(f"{path} is not valid JSON: {error}.", REBUILD_HINT) from error
    version = content.get("format_version") if isinstance(content, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DatastoreError(f"{path} states no format version.", REBUILD_HINT)
    if version > FORMAT_VERSION:
        raise DatastoreError(
            f"{directory} has format {version}; this version reads formats up to {FORMAT_VERSION}.",
            "Install a newer dresd, or build the datastore with this one.",
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise DatastoreError(f"{path} is not a valid manifest: {field}: {first['msg']}.", REBUILD_HINT) from error


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes the manifest beside its place, syncs and renames it; raises OSError."""
    with replacing(directory / MANIFEST_FILE) as beside:
        beside.write_text(json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True) + "\n", "utf-8")
