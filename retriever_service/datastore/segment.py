"""Reading one segment: its files checked and mapped, its tokens found, its lists searched.

It knows rows of its own only; ids across segments are the datastore's matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore import codecs
from retriever_service.datastore.coded_lists import CodedLists
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.files import REBUILD_HINT, load_tensors, map_rows, sha256_of
from retriever_service.datastore.finding import gather
from retriever_service.datastore.layout import (
    CENTROIDS_FILE,
    CONTINUATIONS_FILE,
    DIRECTORY_ARRAYS,
    DIRECTORY_FILE,
    HELD_OUT_FILE,
    INDEX_FILE,
    LEFT_CONTEXTS_FILE,
    SEGMENT_FILES,
    SUFFIX_ORDER_FILE,
    TokenLists,
)
from retriever_service.datastore.lookup import look_up
from retriever_service.datastore.manifest import FileRecord, Manifest, SegmentRecord
from retriever_service.echo import echoed


def check_file(path: Path, record: FileRecord, *, checksum: bool) -> None:
    """Compares a file with its record, size first; raises DatastoreError naming the file."""
    try:
        size = path.stat().st_size
        if size != record.size:
            raise DatastoreError(f"{path} has {size} bytes instead of {record.size}.", REBUILD_HINT)
        if checksum and sha256_of(path) != record.sha256:
            raise DatastoreError(f"{path} is corrupt: its sha256 is not the manifest's.", REBUILD_HINT)
    except OSError as error:
        raise DatastoreError(f"{path} cannot be read: {error.strerror}.", REBUILD_HINT) from error


Found = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Of B queries: similarities [B, k], falling, -inf for none, and the ids of these entries, -1 for none; how many tokens
of the left context match [B, m], falling, 0 for none, and the ids of these entries, -1 for none."""


@dataclass(frozen=True, slots=True)
class Segment:
    """An open segment of n rows and T tokens; read-only, shared by threads.

    Attributes:
        lists: the coded keys, memory-mapped.
        tokens: int64 [T], ascending.
        token_lists: the inverted lists of each token, centroids memory-mapped.
        entry_offsets: int64 [T + 1], the rows of each token.
        stored_continuations: uint16 or uint32 [n, N], memory-mapped.
        stored_left_contexts: uint16 or uint32 [n, C], memory-mapped.
        suffix_order: uint32 [n], memory-mapped: within a token's rows, all of them by left context, most recent
            token first, compared as stored.
    """

    lists: CodedLists
    tokens: NDArray[np.int64]
    token_lists: TokenLists
    entry_offsets: NDArray[np.int64]
    stored_continuations: NDArray[Any]
    stored_left_contexts: NDArray[Any]
    suffix_order: NDArray[np.uint32]

    @classmethod
    def open(cls, directory: Path, record: SegmentRecord, manifest: Manifest, *, verify_checksums: bool) -> Segment:
        """Opens a segment of at least one entry; raises DatastoreError naming the file at fault."""
        if set(record.files) not in (set(SEGMENT_FILES), {*SEGMENT_FILES, HELD_OUT_FILE}):
            raise DatastoreError(f"The manifest lists other files than a segment has for {directory}.", REBUILD_HINT)
        # Everything is compared with the manifest before FAISS sees a byte of it.
        for name, file in record.files.items():
            check_file(directory / name, file, checksum=verify_checksums)
        rows, dims, dtype = record.num_entries, manifest.key_recipe.dims, manifest.token_dtype
        tokens, list_offsets, entry_offsets = _load_directory(directory / DIRECTORY_FILE, rows)
        if tokens[-1] >= manifest.model.vocab_size:
            raise DatastoreError(f"{directory / DIRECTORY_FILE} has tokens beyond the vocabulary.", REBUILD_HINT)
        places = TokenLists.place_centroids(list_offsets)
        centroids = map_rows(directory / CENTROIDS_FILE, shape=(int(places[-1]), dims), dtype=np.float16)
        return cls(
            _map_lists(directory / INDEX_FILE, manifest, list_offsets, entry_offsets),
            tokens,
            TokenLists(list_offsets, places, centroids),
            entry_offsets,
            map_rows(directory / CONTINUATIONS_FILE, shape=(rows, manifest.continuation_length), dtype=dtype),
            map_rows(directory / LEFT_CONTEXTS_FILE, shape=(rows, manifest.left_context_length), dtype=dtype),
            map_rows(directory / SUFFIX_ORDER_FILE, shape=(rows,), dtype=np.uint32),
        )

    def __len__(self) -> int:
        return int(self.entry_offsets[-1])

    @property
    def index(self) -> codecs.FaissIndex:
        """The same coded keys as FAISS's own index."""
        return self.lists.index

    def look_up(
        self,
        first_id: int,
        keys: NDArray[np.float32],
        next_tokens: NDArray[np.int64],
        left_contexts: NDArray[np.int32],
        neighbors: int,
        sparse_neighbors: int,
        nprobe: int,
    ) -> Found:
        """What queries find here within their next tokens.

        Args:
            first_id: the id of row 0.
            keys: float32 [B, dims], C-contiguous.
            next_tokens: int64 [B].
            left_contexts: int32 [B, w], most recent token first, w at most what is stored; 1 or more with
                sparse neighbours.
            neighbors: k, nearest keys wanted.
            sparse_neighbors: m, longest matches of the left context wanted.
            nprobe: lists searched within the token's, 0 for all.

        Raises:
            DatastoreError: the segment is corrupt.
        """
        lists, of_tokens = self.lists, self.token_lists
        try:
            found: Found = look_up(
                self.tokens,
                of_tokens.offsets,
                of_tokens.centroid_offsets,
                of_tokens.centroid_bits,
                lists.content,
                lists.rows,
                lists.code_size,
                lists.codec,
                lists.low,
                lists.step,
                lists.centers,
                self.suffix_order,
                self.stored_left_contexts,
                first_id,
                keys,
                next_tokens,
                left_contexts,
                neighbors,
                sparse_neighbors,
                nprobe,
            )
        except IndexError as error:
            raise DatastoreError("The suffix order of a segment is corrupt.", REBUILD_HINT) from error
        return found

    def next_tokens_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [m]: the next token that each row belongs to."""
        return self.tokens[np.searchsorted(self.entry_offsets, rows, side="right") - 1]

    def continuations_of(self, rows: NDArray[np.int64], depth: int) -> NDArray[np.int32]:
        """int32 [m, depth]: the first tokens of the rows' continuations, `PAD` beyond their end."""
        tokens: NDArray[np.int32] = gather(self.stored_continuations, rows, depth)
        return tokens

    def left_contexts_of(self, rows: NDArray[np.int64], width: int | None = None) -> NDArray[np.int32]:
        """int32 [m, C], or [m, width]: the rows' left contexts, most recent token first."""
        whole = self.stored_left_contexts.shape[1]
        tokens: NDArray[np.int32] = gather(self.stored_left_contexts, rows, whole if width is None else width)
        return tokens

    def keys_of(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32 [m, dims]: the rows' keys as the codec kept them; quick for rows that ascend."""
        lists = np.searchsorted(self.lists.rows, rows, side="right") - 1
        return codecs.keys_at(self.index, lists, rows - self.lists.rows[lists])


def _load_directory(path: Path, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    arrays = load_tensors(path, DIRECTORY_ARRAYS)
    if any(array.dtype != np.uint32 or array.ndim != 1 or len(array) == 0 for array in arrays.values()):
        raise DatastoreError(f"{path} does not hold a token directory.", REBUILD_HINT)
    tokens, lists, entries = (arrays[name].astype(np.int64) for name in ("tokens", "list_offsets", "entry_offsets"))
    consistent = (
        len(lists) == len(entries) == len(tokens) + 1
        and lists[0] == entries[0] == 0
        and entries[-1] == rows
        and bool((np.diff(tokens) > 0).all())
        and bool((np.diff(lists) > 0).all())
        and bool((np.diff(entries) > 0).all())
    )
    if not consistent:
        raise DatastoreError(f"{path} does not hold a consistent token directory.", REBUILD_HINT)
    return tokens, lists, entries


def _map_lists(
    path: Path, manifest: Manifest, list_offsets: NDArray[np.int64], entry_offsets: NDArray[np.int64]
) -> CodedLists:
    try:
        index = codecs.map_index(path)
    except (RuntimeError, MemoryError, OSError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else "out of memory"
        raise DatastoreError(f"{path} is not a readable index: {echoed(reason)}", REBUILD_HINT) from error
    if (
        not codecs.matches(index, manifest.codec)
        or index.d != manifest.key_recipe.dims
        or index.nlist != list_offsets[-1]
    ):
        raise DatastoreError(f"{path} is not an index as the manifest describes it.", REBUILD_HINT)
    # A list that is longer or shorter than the directory says would be read beyond the mapped file.
    list_rows = np.concatenate([[0], np.cumsum(codecs.list_sizes(index))]).astype(np.int64)
    if not np.array_equal(list_rows[list_offsets], entry_offsets):
        raise DatastoreError(f"{path} does not hold the entries its directory lists.", REBUILD_HINT)
    try:
        return CodedLists.of(index, list_rows)
    except ValueError as error:
        raise DatastoreError(f"{path} is not laid out as FAISS does it: {error}.", REBUILD_HINT) from error
