"""States and likely next tokens of texts that a running vLLM reads, taken pass by pass as the drafting hook does.

Texts are requests named by their numbers; places of them are asked for, and what the passes show of these is put into
their order. States become keys where they are. Knows tensors and files; the passes come through `hook`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from torch import Tensor

from decoder_client.engines.vllm import hook
from decoder_client.likely import WIDTH
from decoder_client.reducer import KeyReducer

if TYPE_CHECKING:
    from vllm import LLM

_LOGIT_ROWS = 1024
"""Held at once."""


class Harvest:
    """What one engine's passes show of the texts that it is given next."""

    def __init__(self, llm: LLM) -> None:
        """`llm`: in this process, and without a cache of prefixes."""
        self._runner = hook.runner_of(llm)
        hook.show_passes(self._runner, self._read)
        self._reducer: KeyReducer | None = None
        self._begin = np.zeros(1, np.int64)
        self._entry = np.zeros(0, np.int64)
        self._table = np.zeros(0, np.int64)
        self._found: dict[str, NDArray[np.generic]] = {}

    def begin(self, given: str, reducer: str) -> list[list[int]]:
        """What is wanted; returns the texts, to be read by requests named "0", "1", ...

        Args:
            given: safetensors: `tokens` int32 [n], all texts' one after the other; `lengths` int64 [texts]; `kept`
                uint8 [n], 1 where a state is wanted, in all of [entries]; `chosen` uint8 [entries], 1 where likely next
                tokens are.
            reducer: file of the reducer that makes keys; "" for states.
        """
        told = load_file(given)
        self._reducer = KeyReducer.from_bytes(Path(reducer).read_bytes()) if reducer else None
        self._begin = np.concatenate([[0], np.cumsum(told["lengths"])])
        self._entry = _numbers(told["kept"])
        self._table = _numbers(told["chosen"])
        entries, chosen = int((self._entry >= 0).sum()), int((self._table >= 0).sum())
        model = self._runner.model_config
        width = min(WIDTH, model.get_vocab_size())
        self._found = {
            "vectors": np.zeros((entries, model.get_hidden_size()), np.float32)
            if self._reducer is None
            else np.zeros((entries, self._reducer.dims), np.float16),
            "top_tokens": np.zeros((chosen, width), np.int32),
            "top_probabilities": np.zeros((chosen, width), np.float32),
        }
        return [part.tolist() for part in np.split(told["tokens"], self._begin[1:-1])]

    def finish(self, found: str) -> None:
        """Writes `vectors` float32 [entries, hidden_size] (or float16 keys [entries, dims]), `top_tokens` int32 and
        `top_probabilities` float32 [chosen, 8], most likely first.
        """
        save_file(self._found, found)
        self._found = {}

    @torch.inference_mode()
    def _read(self, spans: Sequence[hook.Span], states: Tensor) -> None:
        if not self._found:
            return  # a pass of answers, or one in which the engine tried itself
        rows, entries = [], []
        at = 0
        for span in spans:
            # vLLM appends something of its own to a name.
            first = self._begin[int(span.request_id.partition("-")[0])] + span.first
            here = self._entry[first : first + span.count]
            rows.append(at + np.flatnonzero(here >= 0))
            entries.append(here[here >= 0])
            at += span.count
        entry = np.concatenate(entries)
        if not len(entry):
            return
        kept = states[torch.from_numpy(np.concatenate(rows)).to(states.device)]
        vectors = kept.float() if self._reducer is None else self._reducer.reduce_torch(kept)
        self._found["vectors"][entry] = vectors.cpu().numpy()
        in_table = self._table[entry]
        wanted = np.flatnonzero(in_table >= 0)
        for part in np.array_split(wanted, -(-len(wanted) // _LOGIT_ROWS)) if len(wanted) else []:
            logits = self._runner.model.compute_logits(kept[torch.from_numpy(part).to(kept.device)]).float()
            best = logits.topk(self._found["top_tokens"].shape[1])
            probabilities = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
            self._found["top_tokens"][in_table[part]] = best.indices.cpu().numpy()
            self._found["top_probabilities"][in_table[part]] = probabilities.cpu().numpy()


def _numbers(marks: NDArray[np.uint8]) -> NDArray[np.int64]:
    """int64: of each mark its number among those that are set; -1 for the others."""
    return np.where(marks > 0, np.cumsum(marks, dtype=np.int64) - 1, -1)
