"""Embedding beside a loop that only runs the model over full batches of the same tokens, block by block in turn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.building.jobs import commit_documents, commit_reducer, natural_lengths, planned
from decoder_client.target_model import TargetModel
from retriever_service.building.embed import EmbedWorker, batch_tokens, batches
from retriever_service.building.models import load_for_computing

_BARE_BATCH_TOKENS = 2048
_CORPUS_TOKENS = 400_000
_DIMS = 64


@dataclass(frozen=True, slots=True)
class Embedding:
    """Tokens a second, and the share of batches that is padding.

    Attributes:
        tokens: embedded.
        tokens_per_s: of a worker: reading documents, batches, keys, likely next tokens, committing blocks.
        bare_tokens_per_s: of the model's forward pass alone, on batches without padding.
        padding: share of the tokens that are run through the model.
        table_share: positions whose likely next tokens were kept.
    """

    tokens: int
    tokens_per_s: float
    bare_tokens_per_s: float
    padding: float
    table_share: float

    @property
    def share(self) -> float:
        """Of the bare loop's speed."""
        return self.tokens_per_s / self.bare_tokens_per_s


def measure(folder: Path, model: Path, tokens: int, table_share: float, threads: int) -> Embedding:
    """Embeds about so many tokens, blocks from all over a corpus, and runs the bare loop over as many."""
    bare = load_for_computing(str(model), threads)
    commit_documents(folder, natural_lengths(_CORPUS_TOKENS), bare.vocab_size)
    commit_reducer(folder, bare.hidden_size, _DIMS)
    plan, documents = planned(folder).load()
    for name in ("embedded", "counters"):
        (folder / name).mkdir()
    worker = EmbedWorker(
        engine="transformers",
        model=str(model),
        planned=planned(folder),
        out=folder / "embedded",
        counters=folder / "counters",
        reducer=folder / "fit" / "reducer.block",
        table_share=table_share,
        seed=0,
        threads=threads,
    )
    number = min(max(round(plan.num_blocks * tokens / plan.tokens.sum()), 2), plan.num_blocks)
    chosen = np.linspace(0, plan.num_blocks - 1, number).astype(int).tolist()
    lengths = [[len(documents[each].tokens) for each in plan.documents(block)] for block in chosen]
    _bare_s(bare, lengths[0])
    worker(chosen[0])
    own_s = bare_s = 0.0
    done = 0
    for turn, (block, inside) in enumerate(zip(chosen, lengths, strict=True)):
        for own in (True, False) if turn % 2 else (False, True):  # each goes first every other time
            if own:
                begun = time.perf_counter()
                done += worker(block)
                own_s += time.perf_counter() - begun
            else:
                bare_s += _bare_s(bare, inside)
    found = [(inside, batch) for inside in lengths for batch in batches(inside, batch_tokens(bare.device.type))]
    run = sum(max(inside[at] for at in batch) * len(batch) for inside, batch in found)
    return Embedding(done, done / own_s, done / bare_s, 1 - done / run, table_share)


def _bare_s(target: TargetModel, lengths: Sequence[int]) -> float:
    """Seconds for as many tokens as the documents have, in rows of their average length and no padding."""
    total = sum(lengths)
    row = round(total / len(lengths))
    ids = torch.from_numpy(np.random.default_rng(3).integers(0, target.vocab_size, total))
    rows = total // row
    begun = time.perf_counter()
    for first in range(0, rows, max(_BARE_BATCH_TOKENS // row, 1)):
        batch = ids[first * row : min(first + max(_BARE_BATCH_TOKENS // row, 1), rows) * row].view(-1, row)
        target.hidden_states(batch.to(target.device), torch.ones_like(batch, device=target.device))
    if total > rows * row:
        rest = ids[None, rows * row :]
        target.hidden_states(rest.to(target.device), torch.ones_like(rest, device=target.device))
    return time.perf_counter() - begun
