"""Runs the target over documents: keys (or states) of every stored position, and likely next tokens of a sample.

A block is embedded before there is a reducer (the sample it is fitted on: hidden states are kept) or after (keys are
made on the device). Either way every document is read by the model once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from decoder_client.reducer import KeyReducer
from decoder_client.target_model import TargetModel
from retriever_service.building import blocks
from retriever_service.building.document import Document
from retriever_service.building.embedded import EmbeddedBlock
from retriever_service.building.engines import make_engine
from retriever_service.building.errors import BuildError
from retriever_service.building.planning import Planned
from retriever_service.building.progress import Counter

TABLE_WIDTH = 8
"""Likely next tokens kept of a position."""

# Tokens of one padded batch (a CPU is as fast with few, which need less padding), and rows of logits held at once.
_BATCH_TOKENS = {"cpu": 1024, "cuda": 16_384}
_LOGIT_ROWS = {"cpu": 256, "cuda": 2048}


class EmbedWorker:
    """A `BlockWorker` that holds the model."""

    def __init__(
        self,
        *,
        engine: str,
        model: str,
        planned: Planned,
        out: Path,
        counters: Path,
        reducer: Path,
        table_share: float,
        seed: int,
        threads: int,
    ) -> None:
        """Args:
        engine: one of `ENGINES`.
        model: folder or hub name.
        planned: the blocks.
        out: folder of the embedded blocks.
        counters: folder of the counters of tokens embedded.
        reducer: the block it is in, once the sample is embedded.
        table_share: of positions, whose likely next tokens are kept.
        seed: of their choice.
        threads: of the computation on a CPU.
        """
        self._engine = make_engine(engine, model, threads)
        self._plan, self._documents = planned.load()
        self._out = out
        self._counters = counters
        self._reducer_path = reducer
        self._reducer: KeyReducer | None = None
        self._table_share = table_share
        self._seed = seed

    def __call__(self, block: int) -> int:
        """Embeds a block and commits it; returns its tokens."""
        documents = [self._documents[number] for number in self._plan.documents(block).tolist()]
        entries = int(self._plan.first_entries[block + 1] - self._plan.first_entries[block])
        chosen = np.random.default_rng([self._seed, block]).random(entries) < self._table_share
        with Counter(self._counters / f"block-{block:06d}") as counter:
            embedded = self._engine.embed(documents, self._reducer_of(block), chosen, counter)
        embedded.commit(self._out, block)
        return int(self._plan.tokens[block])

    def _reducer_of(self, block: int) -> KeyReducer | None:
        if block < self._plan.sample_blocks:
            return None
        if self._reducer is None:
            self._reducer = KeyReducer.from_bytes(blocks.load(self._reducer_path))
        return self._reducer


def embed(
    target: TargetModel,
    documents: Sequence[Document],
    reducer: KeyReducer | None,
    chosen: NDArray[np.bool_] | None = None,
    counter: Counter | None = None,
) -> EmbeddedBlock:
    """States (without a reducer) or keys of every stored position of the documents, and likely next tokens of some.

    Args:
        target: the model.
        documents: neighbours of about equal length, so that little of a batch is padding.
        reducer: None for states.
        chosen: bool [entries], the positions whose likely next tokens are wanted; None for all.
        counter: raised by the tokens embedded.

    Raises:
        BuildError: the model computes NaN or infinite states.
    """
    kind = target.device.type
    vectors, next_tokens, probabilities = [], [], []
    finite = torch.ones((), dtype=torch.bool, device=target.device)
    entries = 0
    for batch in batches([len(document.tokens) for document in documents], batch_tokens(kind)):
        packed = [documents[number] for number in batch]
        ids, positions = _padded(packed)
        # Padding stands behind all tokens of its row, none of which looks ahead: no mask is needed, nor its cost.
        states = target.hidden_states(ids.to(target.device), torch.ones_like(ids, device=target.device))
        kept = states.flatten(0, 1)[positions.to(target.device)]
        finite &= torch.isfinite(kept).all()
        here = slice(entries, entries + len(positions))
        entries = here.stop
        rows = kept if chosen is None else kept[torch.from_numpy(np.flatnonzero(chosen[here])).to(target.device)]
        tokens_of, probabilities_of = _likely_next(target, rows, _LOGIT_ROWS.get(kind, 2048))
        next_tokens.append(tokens_of)
        probabilities.append(probabilities_of)
        vectors.append(kept.float() if reducer is None else reducer.reduce_torch(kept))
        if counter is not None:
            counter.add(sum(len(document.tokens) for document in packed))
    if not finite:
        raise BuildError(f"Model {target.name!r} computes NaN or infinite states. Are its weights intact?")
    asked = np.flatnonzero(np.ones(entries, np.bool_) if chosen is None else chosen)
    previous, current = last_two(documents)
    return EmbeddedBlock(
        torch.cat(vectors).cpu().numpy(),
        previous[asked],
        current[asked],
        torch.cat(next_tokens).cpu().numpy(),
        torch.cat(probabilities).cpu().numpy(),
    )


def batch_tokens(kind: str) -> int:
    """Tokens of a padded batch on a kind of device."""
    return _BATCH_TOKENS.get(kind, _BATCH_TOKENS["cuda"])


def batches(lengths: Sequence[int], budget: int) -> Iterator[range]:
    """Consecutive documents, at most `budget` tokens with padding (or one document) together."""
    begin, longest = 0, 0
    for number, length in enumerate(lengths):
        if number > begin and max(longest, length) * (number - begin + 1) > budget:
            yield range(begin, number)
            begin, longest = number, 0
        longest = max(longest, length)
    if lengths:
        yield range(begin, len(lengths))


def _padded(documents: Sequence[Document]) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [documents, longest] tokens, and int64 [entries] where keys stand in them, flattened."""
    longest = max(len(document.tokens) for document in documents)
    ids = np.zeros((len(documents), longest), np.int64)
    positions = []
    for row, document in enumerate(documents):
        ids[row, : len(document.tokens)] = document.tokens
        positions.append(row * longest + np.flatnonzero(document.stored) - 1)
    return torch.from_numpy(ids), torch.from_numpy(np.concatenate(positions))


def last_two(documents: Sequence[Document]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """int32 [entries] each: the token before each key's, -1 at the start of a text, and the key's own."""
    previous, current = [], []
    for document in documents:
        at = np.flatnonzero(document.stored) - 1
        before = np.append(np.int32(-1), document.tokens)
        previous.append(before[at])
        current.append(document.tokens[at])
    return np.concatenate(previous), np.concatenate(current)


@torch.inference_mode()
def _likely_next(target: TargetModel, states: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 [n, 8] and float32 [n, 8]; the logits of `rows` positions are held at once."""
    width = min(TABLE_WIDTH, target.vocab_size)
    tokens = [torch.zeros((0, width), dtype=torch.int32, device=states.device)]
    probabilities = [torch.zeros((0, width), device=states.device)]
    for part in torch.split(states, rows):
        if len(part) == 0:
            continue
        logits = target.logits(part).float()
        best = logits.topk(width)
        tokens.append(best.indices.int())
        probabilities.append((best.values - logits.logsumexp(-1, keepdim=True)).exp())
    return torch.cat(tokens), torch.cat(probabilities)
