"""Runs the target over documents: keys and likely next tokens of every stored position, block by block, into files.

A block is embedded before there is a reducer (the sample it is fitted on: hidden states are kept, to be reduced when
it is known) or after (keys are made on the device). Either way every document is read by the model once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from decoder_client.reducer import KeyReducer
from decoder_client.target_model import TargetModel
from retriever_service.building.document import Document
from retriever_service.building.embedded import EmbeddedBlock, block_path
from retriever_service.building.errors import BuildError
from retriever_service.building.models import load_for_computing
from retriever_service.building.plan import Block
from retriever_service.building.progress import Counter
from retriever_service.building.spool import DocumentSpool

TABLE_WIDTH = 8
"""Likely next tokens kept of a position."""

# Tokens of one padded batch, and rows of logits held at once.
_BATCH_TOKENS = {"cpu": 2048, "cuda": 16_384}
_LOGIT_ROWS = {"cpu": 256, "cuda": 2048}


class EmbedWorker:
    """A `BlockWorker` that holds the model."""

    def __init__(
        self, *, model: str, spool: Path, out: Path, counters: Path, reducer: bytes | None, threads: int
    ) -> None:
        self._target = load_for_computing(model, threads)
        self._spool = DocumentSpool(spool)
        self._out = out
        self._counters = counters
        self._reducer = None if reducer is None else KeyReducer.from_bytes(reducer)

    def __call__(self, block: Block) -> int:
        """Embeds a block and writes it; returns its stored positions."""
        documents = [self._spool[number] for number in block.documents]
        with Counter(self._counters / f"embed-{block.number:06d}") as counter:
            embedded = embed(self._target, documents, self._reducer, counter)
        embedded.save(block_path(self._out, block))
        return len(embedded.vectors)


def embed(
    target: TargetModel, documents: list[Document], reducer: KeyReducer | None, counter: Counter | None = None
) -> EmbeddedBlock:
    """States (without a reducer) or keys, and likely next tokens, of every stored position of the documents.

    Raises:
        BuildError: the model computes NaN or infinite states.
    """
    kind = target.device.type
    parts: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
    for batch in _batches([len(document.tokens) for document in documents], _BATCH_TOKENS.get(kind, 16_384)):
        longest = max(len(documents[row].tokens) for row in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, number in enumerate(batch):
            tokens = documents[number].tokens
            ids[row, : len(tokens)] = torch.from_numpy(tokens)
            mask[row, : len(tokens)] = 1
        states = target.hidden_states(ids.to(target.device), mask.to(target.device))
        for row, number in enumerate(batch):
            positions = torch.from_numpy(np.flatnonzero(documents[number].stored) - 1).to(target.device)
            kept = states[row, positions]
            if not torch.isfinite(kept).all():
                raise BuildError(f"Model {target.name!r} computes NaN or infinite states. Are its weights intact?")
            tokens_of, probabilities = _likely_next(target, kept, _LOGIT_ROWS.get(kind, 2048))
            vectors = kept.float() if reducer is None else reducer.reduce_torch(kept)
            parts[number] = (vectors.cpu(), tokens_of.cpu(), probabilities.cpu())
        if counter is not None:
            counter.add(sum(len(documents[row].tokens) for row in batch))
    in_order = [parts[number] for number in range(len(documents))]
    return EmbeddedBlock(*(torch.cat(column).numpy() for column in zip(*in_order, strict=True)))


def _batches(lengths: list[int], budget: int) -> Iterator[list[int]]:
    """Numbers of documents of similar length, longest first, at most `budget` tokens with padding (or one document)."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


@torch.inference_mode()
def _likely_next(target: TargetModel, states: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 [n, 8] and float32 [n, 8]; the logits of `rows` positions are held at once."""
    tokens, probabilities = [], []
    for part in torch.split(states, rows):
        logits = target.logits(part).float()
        best = logits.topk(min(TABLE_WIDTH, logits.shape[-1]))
        tokens.append(best.indices.int())
        probabilities.append((best.values - logits.logsumexp(-1, keepdim=True)).exp())
    return torch.cat(tokens), torch.cat(probabilities)
