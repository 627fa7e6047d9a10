"""Jobs of synthetic work: documents of random tokens, and keys for them, committed as a build's stages commit them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.synthetic import DIMS, Generator
from decoder_client.reducer import KeyReducer
from retriever_service.building import blocks
from retriever_service.building.document import Document
from retriever_service.building.documents import ShardWriter
from retriever_service.building.embedded import EmbeddedBlock
from retriever_service.building.planning import Planned

DOCUMENT_TOKENS = 101
_SHARD_DOCUMENTS = 10_000
_TABLE_EVERY = 16
_SHORTEST, _LONGEST = 24, 900


def plan_path(folder: Path) -> Path:
    """Where the plan of a job lies."""
    return folder / "plans" / "documents.block"


def planned(folder: Path) -> Planned:
    """The plan of a job that was made here."""
    return Planned(plan_path(folder), tuple(sorted((folder / "ingest").glob("*.block"))))


def commit_reducer(folder: Path, hidden_size: int, dims: int) -> None:
    """A reducer that nothing was fitted to."""
    (folder / "fit").mkdir(parents=True, exist_ok=True)
    weight = np.random.default_rng(0).normal(size=(dims, hidden_size)).astype(np.float32)
    reducer = KeyReducer(weight, np.zeros(dims, np.float32), 1.0, dims + 1)
    blocks.commit(folder / "fit" / "reducer.block", reducer.to_bytes())


def commit_documents(folder: Path, lengths: NDArray[np.int64], vocab_size: int) -> None:
    """Documents of random tokens, all stored, and their plan."""
    random = np.random.default_rng(1)
    tokens = (random.integers(0, vocab_size, int(length)).tolist() for length in lengths)
    _commit(folder, (Document.of([], each) for each in tokens), vocab_size)


def natural_lengths(tokens: int) -> NDArray[np.int64]:
    """Lengths of documents as of prompts with answers: log-normal, about 200 on the average."""
    lengths = np.exp(np.random.default_rng(2).normal(5.1, 0.6, tokens // 50)).astype(np.int64)
    lengths = np.clip(lengths, _SHORTEST, _LONGEST)
    return lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1]


def make_embedded_job(folder: Path, entries: int) -> None:
    """A job whose documents are embedded: synthetic keys with the next tokens that belong to them."""
    generator = Generator()
    _commit(folder, _documents_of(generator, entries), generator.vocab_size)
    commit_reducer(folder, DIMS, DIMS)
    (folder / "embedded").mkdir()
    plan, _ = planned(folder).load()
    keys = _Rows(batch.keys.astype(np.float16) for batch in generator.entries(entries))
    for block in range(plan.num_blocks):
        number = int(plan.first_entries[block + 1] - plan.first_entries[block])
        random = np.random.default_rng(block)
        table = (-(-number // _TABLE_EVERY), 8)
        tokens = [random.integers(0, generator.vocab_size, table).astype(np.int32) for _ in range(2)]
        embedded = EmbeddedBlock(
            keys.take(number), tokens[0][:, 0], tokens[0][:, 1], tokens[1], np.full(table, 0.1, np.float32)
        )
        embedded.commit(folder / "embedded", block)


class _Rows:
    """Takes as many rows at a time as are wanted from arrays that come in other sizes."""

    def __init__(self, arrays: Iterator[NDArray[Any]]) -> None:
        self._arrays = arrays
        self._held: NDArray[Any] | None = None

    def take(self, number: int) -> NDArray[Any]:
        parts: list[NDArray[Any]] = []
        while number:
            if self._held is None or len(self._held) == 0:
                self._held = next(self._arrays)
            parts.append(self._held[:number])
            self._held = self._held[number:]
            number -= len(parts[-1])
        return np.concatenate(parts)


def _documents_of(generator: Generator, entries: int) -> Iterator[Document]:
    """Of equal length, so that they are embedded in their order."""
    tokens = _Rows(batch.next_tokens.astype(np.int32) for batch in generator.entries(entries))
    stored = np.arange(DOCUMENT_TOKENS) > 0
    for _ in range(entries // (DOCUMENT_TOKENS - 1)):
        yield Document(np.append(np.int32(0), tokens.take(DOCUMENT_TOKENS - 1)), stored)


def _commit(folder: Path, documents: Iterator[Document], vocab_size: int) -> None:
    for name in ("ingest", "plans"):
        (folder / name).mkdir(parents=True)
    number = 0
    for shard in count():
        writer = ShardWriter()
        for document in islice(documents, _SHARD_DOCUMENTS):
            writer.add(document, identity=number.to_bytes(16, "little"))  # no two are equal
            number += 1
        if writer.tokens == 0:
            break
        writer.commit(folder / "ingest" / f"shard-{shard:05d}.block", {})
    planned(folder).make(vocab_size=vocab_size, sample_entries=0, seed=0)


if __name__ == "__main__":
    make_embedded_job(Path(sys.argv[1]), int(sys.argv[2]))
