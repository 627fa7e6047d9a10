"""In which order documents are embedded, and in which blocks. Knows their sizes only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Small blocks share the work evenly and lose little when a worker dies; large ones keep files few.
_BLOCKS_WANTED = 64
_MIN_BLOCK_TOKENS = 4096
_MAX_BLOCK_TOKENS = 131_072
_PROMPTS_IN_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Block:
    """Documents embedded together.

    Attributes:
        number: of the block.
        documents: their numbers in the spool.
        first_entry: entries in all blocks before.
    """

    number: int
    documents: tuple[int, ...]
    first_entry: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All blocks: those of a uniform sample of documents, for the reducer, and the rest."""

    sample: tuple[Block, ...]
    rest: tuple[Block, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All of them, in order."""
        return self.sample + self.rest


def make_plan(lengths: NDArray[np.int64], entries: NDArray[np.int64], *, fit_tokens: int, seed: int) -> Plan:
    """Orders documents at random, the first of them with at least `fit_tokens` entries being the sample.

    Args:
        lengths: int64 [documents], tokens.
        entries: int64 [documents].
        fit_tokens: wanted in the sample; fewer if the corpus has fewer.
        seed: of the order.
    """
    order = np.random.default_rng(seed).permutation(len(lengths))
    enough = int(np.searchsorted(np.cumsum(entries[order]), fit_tokens)) + 1
    size = int(np.clip(lengths.sum() // _BLOCKS_WANTED, _MIN_BLOCK_TOKENS, _MAX_BLOCK_TOKENS))
    groups = [
        (group, part == 0)
        for part, half in enumerate((order[:enough], order[enough:]))
        for group in _groups(half, lengths, size)
    ]
    first_entries = np.cumsum([0] + [int(entries[list(group)].sum()) for group, _ in groups])
    blocks = [Block(number, group, int(first_entries[number])) for number, (group, _) in enumerate(groups)]
    in_sample = sum(sampled for _, sampled in groups)
    return Plan(tuple(blocks[:in_sample]), tuple(blocks[in_sample:]))


def _groups(order: NDArray[np.int64], lengths: NDArray[np.int64], size: int) -> list[tuple[int, ...]]:
    """Consecutive documents of at most `size` tokens, or one that is longer."""
    groups: list[list[int]] = []
    tokens = size
    for number in order.tolist():
        tokens += int(lengths[number])
        if tokens > size:
            groups.append([])
            tokens = int(lengths[number])
        groups[-1].append(number)
    return [tuple(group) for group in groups]


def prompt_blocks(lengths: NDArray[np.int64]) -> tuple[Block, ...]:
    """Prompts of similar length together, so that a batch of them needs little padding; the longest first."""
    order = np.argsort(-lengths, kind="stable").tolist()
    groups = [order[begin : begin + _PROMPTS_IN_BLOCK] for begin in range(0, len(order), _PROMPTS_IN_BLOCK)]
    return tuple(Block(number, tuple(group), 0) for number, group in enumerate(groups))
