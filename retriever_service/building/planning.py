"""The plan of a build as a committed block: made by one task, read by all that come after it.

Its sections: totals (JSON), the plan's arrays, how often each token is stored, and the tokens of each block.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever_service.building import blocks
from retriever_service.building.documents import Documents, Shard, ShardSizes
from retriever_service.building.plan import Plan, first_of_equals, make_plan

_TOTALS, _PLAN, _COUNTS, _BLOCKS = range(4)


@dataclass(frozen=True, slots=True)
class Totals:
    """What a driver needs to know of a plan.

    Attributes:
        documents: embedded, or answered; pieces of long ones count.
        duplicates: documents left out, because there is an equal one.
        tokens: of all that are embedded.
        entries: theirs.
        blocks: all of them.
        sample_blocks: the first so many.
        groups: of blocks, to be shuffled.
    """

    documents: int
    duplicates: int
    tokens: int
    entries: int
    blocks: int
    sample_blocks: int
    groups: int


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan on disk, and the shards it is of; a picklable value for processes that share the disk."""

    path: Path
    shards: tuple[Path, ...]

    def totals(self) -> Totals:
        """Read without the rest."""
        return Totals(**json.loads(blocks.load(self.path, _TOTALS)))

    def load(self) -> tuple[Plan, Documents]:
        """The plan, and its documents to be read by number."""
        arrays = blocks.unpack(blocks.load(self.path, _PLAN))
        documents = Documents(self.shards, arrays.pop("shard_offsets"))
        sample_blocks = int(arrays.pop("sample_blocks")[0])
        return Plan(**arrays, sample_blocks=sample_blocks), documents

    def block_tokens(self) -> NDArray[np.int64]:
        """int64 [blocks]: tokens of each."""
        return blocks.unpack(blocks.load(self.path, _BLOCKS))["tokens"]

    def token_counts(self) -> NDArray[np.int64]:
        """int64 [vocab_size]: how often each token is stored."""
        return blocks.unpack(blocks.load(self.path, _COUNTS))["counts"]

    def make(self, *, vocab_size: int, sample_entries: int, seed: int, block_documents: int | None = None) -> Totals:
        """Makes the plan and commits it; reads the sizes of all documents and, shard by shard, their tokens.

        Args:
            vocab_size: of the model.
            sample_entries: wanted in the sample.
            seed: of the sample.
            block_documents: documents of a block; None for blocks by tokens.
        """
        sizes = [ShardSizes.load(path) for path in self.shards]
        lengths = _joined([size.lengths for size in sizes])
        entries = _joined([size.entries for size in sizes])
        kept = first_of_equals(np.concatenate([size.hashes for size in sizes]))
        plan = make_plan(
            lengths, entries, kept, sample_entries=sample_entries, seed=seed, block_documents=block_documents
        )
        offsets = np.cumsum([0, *(len(size.lengths) for size in sizes)]).astype(np.int64)
        totals = Totals(
            documents=len(plan.order),
            duplicates=int((~kept).sum()),
            tokens=int(plan.tokens.sum()),
            entries=int(plan.first_entries[-1]),
            blocks=plan.num_blocks,
            sample_blocks=plan.sample_blocks,
            groups=len(plan.groups) - 1,
        )
        arrays: dict[str, NDArray[Any]] = {
            "order": plan.order,
            "offsets": plan.offsets,
            "first_entries": plan.first_entries,
            "tokens": plan.tokens,
            "groups": plan.groups,
            "sample_blocks": np.array([plan.sample_blocks], np.int64),
            "shard_offsets": offsets,
        }
        counts = {"counts": self._count(offsets, kept, vocab_size)}
        of_blocks = {"tokens": plan.tokens}
        about = json.dumps(asdict(totals)).encode()
        blocks.commit(self.path, about, *(blocks.pack(each) for each in (arrays, counts, of_blocks)))
        return totals

    def _count(self, offsets: NDArray[np.int64], kept: NDArray[np.bool_], vocab_size: int) -> NDArray[np.int64]:
        counts = np.zeros(vocab_size, np.int64)
        for path, begin, end in zip(self.shards, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            shard = Shard.load(path)
            stored = shard.stored & shard.rows_of(np.flatnonzero(kept[begin:end]))
            counts += np.bincount(shard.tokens[stored], minlength=vocab_size)
        return counts


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *parts])
