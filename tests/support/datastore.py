"""Small synthetic datastores, built through the public writer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from dresd.identity import KeyRecipe, ModelIdentity
from retriever_service.datastore import (
    CHECKSUM_FIELD,
    MANIFEST_FILE,
    REDUCER_FILE,
    ROUTING_FILE,
    TOKEN_TABLE_FILE,
    CorpusFile,
    CorpusProvenance,
    Datastore,
    EntryBatch,
    Manifest,
    PartitionRecord,
    TokenTableBuilder,
    assign_tokens,
    dataset_files,
    manifest_checksum,
    save_routing,
    save_token_table,
    segment_directory,
    split_entries,
    token_dtype,
    write_manifest,
    write_partition,
)

PAD = -1


def random_entries(
    num_entries: int = 500,
    *,
    dims: int = 8,
    vocab_size: int = 50,
    continuation_length: int = 6,
    left_context_length: int = 5,
    seed: int = 0,
) -> EntryBatch:
    """Entries with clustered keys, Zipf-like next tokens, and paths that share prefixes and end early at times."""
    random = np.random.default_rng(seed)
    next_tokens = np.minimum(random.zipf(1.4, num_entries) - 1, vocab_size - 1).astype(np.int64)
    centers = random.normal(size=(max(1, num_entries // 10), dims))
    keys = centers[random.integers(len(centers), size=num_entries)] + 0.3 * random.normal(size=(num_entries, dims))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)

    def rows(width: int) -> NDArray[np.int32]:
        # Few different tokens, so that paths share prefixes; the highest id so that it is covered too.
        tokens = random.integers(0, min(3, vocab_size), size=(num_entries, width)).astype(np.int32)
        tokens[random.random((num_entries, width)) < 0.1] = vocab_size - 1
        lengths = random.integers(0, width + 1, size=num_entries)
        return np.where(np.arange(width) < np.maximum(lengths, 1)[:, None], tokens, PAD).astype(np.int32)

    continuations = rows(continuation_length)
    continuations[random.random(num_entries) < 0.05] = PAD
    return EntryBatch(keys.astype(np.float32), next_tokens, continuations, rows(left_context_length))


@dataclass(frozen=True)
class BuiltDatastore:
    """A datastore on disk and what was put into it."""

    path: Path
    entries: EntryBatch
    manifest: Manifest

    def open(self, **options: object) -> Datastore:
        return Datastore.open(self.path, **options)


def build_datastore(
    path: Path,
    entries: EntryBatch | None = None,
    *,
    vocab_size: int = 50,
    hidden_size: int | None = None,
    num_partitions: int = 1,
    codec: str = "flat",
    nprobe: int = 0,
    num_entries_total: int | None = None,
    reducer: bytes | None = None,
    model: ModelIdentity | None = None,
    build_id: str = "test-build",
    seed: int = 0,
) -> BuiltDatastore:
    """Writes a complete datastore to `path` (must not exist): random entries unless some are given.

    `reducer` is the reducer's safetensors file; without it a random affine map of the expected shape is written.
    `num_entries_total` set to 100,000 or more makes tokens with 1,000 entries have sub-clusters.
    """
    entries = random_entries(vocab_size=vocab_size, seed=seed) if entries is None else entries
    dims = entries.keys.shape[1]
    hidden_size = hidden_size or max(12, dims)
    path.mkdir(parents=True)
    random = np.random.default_rng(seed)
    if reducer is None:
        weight = random.normal(size=(dims, hidden_size)).astype(np.float32)
        reducer = save({"weight": weight, "bias": np.zeros(dims, np.float32)})
    (path / REDUCER_FILE).write_bytes(reducer)
    table = TokenTableBuilder()
    table.add(
        entries.left_contexts[:, 1].astype(np.int64),
        entries.left_contexts[:, 0].astype(np.int64),
        np.repeat(entries.next_tokens[:, None], 1, axis=1),
        np.full((len(entries), 1), 0.5, np.float32),
    )
    save_token_table(path / TOKEN_TABLE_FILE, table.build())
    routing = assign_tokens(np.bincount(entries.next_tokens, minlength=vocab_size), num_partitions)
    save_routing(routing, path / ROUTING_FILE)
    owners = split_entries(routing, entries.next_tokens, np.arange(len(entries)))
    partitions = [
        PartitionRecord(
            index=partition,
            segments=[
                write_partition(
                    path / segment_directory(partition),
                    [entries.select(owners == partition)],
                    codec=codec,
                    vocab_size=vocab_size,
                    num_entries_total=len(entries) if num_entries_total is None else num_entries_total,
                    seed=seed,
                )
            ],
        )
        for partition in range(num_partitions)
    ]
    files = dataset_files(path)
    manifest = Manifest(
        build_id=build_id,
        model=model or ModelIdentity("tiny", "", "ab" * 32, "cd" * 32, hidden_size, vocab_size),
        key_recipe=KeyRecipe("last", "l2", dims, files[REDUCER_FILE].sha256),
        corpus=CorpusProvenance(
            files=[CorpusFile(name="corpus.jsonl", size=1, sha256="ef" * 32, documents=1)],
            documents=1,
            tokens=len(entries),
        ),
        continuation_length=entries.continuations.shape[1],
        left_context_length=entries.left_contexts.shape[1],
        token_dtype=token_dtype(vocab_size),
        codec=codec,
        nprobe=nprobe,
        num_entries=len(entries),
        files=files,
        partitions=partitions,
        versions={"numpy": np.__version__},
        command="tests",
        created="2026-01-01T00:00:00Z",
    )
    write_manifest(path, manifest)
    return BuiltDatastore(path, entries, manifest)


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a datastore's manifest by hand, as somebody does who corrects its checksum too."""
    content = json.loads((path / MANIFEST_FILE).read_text())
    del content[CHECKSUM_FIELD]
    change(content)
    content[CHECKSUM_FIELD] = manifest_checksum(content)
    (path / MANIFEST_FILE).write_text(json.dumps(content))
