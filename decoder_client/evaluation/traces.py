"""Traces: known answers with what a forward pass over them gives, so that decoding them can be replayed without one.

The target reads each prompt and answer once; its states and likeliest tokens are kept in the cache folder, under a name
made of the tokens and the model's weights. Knows the target model and files; not what is replayed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoder_client.evaluation.token_records import TokenRecord
from decoder_client.target_model import TargetModel

LIKELY = 8
"""Likeliest next tokens kept a position."""

_LAYOUT = "traces-1"
_ROWS_AT_ONCE = 64
"""Logits are made for this many positions at a time: a large vocabulary's would fill the memory."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One known answer of n tokens, prompt included, and what the target makes of each position.

    Attributes:
        record: prompt and answer.
        states: float32 [n, hidden_size]: row i is what the target predicted token i + 1 from.
        next_tokens: int64 [n, LIKELY]: its likeliest tokens there, likeliest first.
        probabilities: float32 [n, LIKELY], unwarped.
    """

    record: TokenRecord
    states: Tensor
    next_tokens: Tensor
    probabilities: Tensor

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.record.prompt + self.record.answer

    @property
    def disagreements(self) -> int:
        """Tokens of the answer that are not the target's likeliest."""
        first = len(self.record.prompt)
        answer = torch.tensor(self.record.answer)
        return int((self.next_tokens[first - 1 : -1, 0] != answer).sum())


def load_traces(
    records: Sequence[TokenRecord], target: TargetModel, folder: Path, *, on_trace: Callable[[int], None]
) -> list[Trace]:
    """The traces of `records`, from the cache, or computed and put there.

    Args:
        records: at most the model's length each.
        target: reads them.
        folder: of the cache; made if missing. A cache that cannot be written only costs the next run's time.
        on_trace: called with the number of traces computed so far; not at all when they come from the cache.
    """
    path = folder / "traces" / f"{_key(records, target)}.safetensors"
    tensors = _from_cache(path, sum(_length(record) for record in records), target.hidden_size)
    if tensors is None:
        tensors = _computed(records, target, on_trace)
        _to_cache(path, tensors)
    traces, begin = [], 0
    for record in records:
        rows = slice(begin, begin + _length(record))
        traces.append(
            Trace(record, tensors["states"][rows], tensors["next_tokens"][rows], tensors["probabilities"][rows])
        )
        begin = rows.stop
    return traces


def _length(record: TokenRecord) -> int:
    return len(record.prompt) + len(record.answer)


def _key(records: Sequence[TokenRecord], target: TargetModel) -> str:
    tokens = [[record.prompt, record.answer] for record in records]
    what = [_LAYOUT, LIKELY, target.identity().weights_fingerprint, str(target.dtype), tokens]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def _computed(
    records: Sequence[TokenRecord], target: TargetModel, on_trace: Callable[[int], None]
) -> dict[str, Tensor]:
    states, next_tokens, probabilities = [], [], []
    for number, record in enumerate(records, start=1):
        ids = torch.tensor([record.prompt + record.answer], device=target.device)
        read = target.hidden_states(ids, torch.ones_like(ids))[0]
        likely = [target.logits(rows).float().softmax(-1).topk(LIKELY) for rows in torch.split(read, _ROWS_AT_ONCE)]
        states.append(read.float().cpu())
        next_tokens.append(torch.cat([one.indices for one in likely]).cpu())
        probabilities.append(torch.cat([one.values for one in likely]).cpu())
        on_trace(number)
    joined = {"states": states, "next_tokens": next_tokens, "probabilities": probabilities}
    # Clones: what is made in inference mode could not be used outside it.
    return {name: torch.cat(parts).clone() for name, parts in joined.items()}


def _from_cache(path: Path, rows: int, hidden_size: int) -> dict[str, Tensor] | None:
    shapes = {"states": (rows, hidden_size), "next_tokens": (rows, LIKELY), "probabilities": (rows, LIKELY)}
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError):
        return None  # never made, or not whole
    return tensors if {name: tuple(tensor.shape) for name, tensor in tensors.items()} == shapes else None


def _to_cache(path: Path, tensors: dict[str, Tensor]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file(tensors, beside)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except (OSError, SafetensorError):
        return
