"""What one step of the engine showed, in our own words: requests, their new tokens, states and logits.

Knows tensors and token ids; nothing of the engine it comes from, nor of drafting.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class TokenView(Sequence[int]):
    """The first `length` numbers of an array that the engine goes on writing to, as token ids; copies nothing."""

    def __init__(self, row: NDArray[np.integer], length: int) -> None:
        self._row = row[:length]

    def __len__(self) -> int:
        return len(self._row)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self._row[at].tolist() if isinstance(at, slice) else int(self._row[at])


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """One request's part of a step.

    Attributes:
        request_id: the engine's.
        text: prompt and answer so far, the new tokens included.
        sampled: how many tokens the step added; 0 while the prompt is still being read.
        drafted: draft tokens that the step verified.
        scheduled: tokens that the step's pass read for it.
        room: tokens that may still be drafted, by the model's length, the request's own, and the engine's.
        adapter: name of its LoRA adapter; "" for none.
    """

    request_id: str
    text: Sequence[int]
    sampled: int
    drafted: int
    scheduled: int
    room: int
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class EngineStep:
    """A pass and what was sampled after it.

    Attributes:
        requests: in the order of the pass.
        states: [rows, hidden_size]: of every place that a token was sampled at: one a request, and one more for each
            of its draft tokens. What the language model head reads.
        all_states: [tokens, hidden_size]: of every token that the pass read; more rows may follow.
        logits: [rows, vocab_size], of the same places as `states`; None where the engine keeps them to itself.
        gone: requests that have ended, or lost their cache and will be read again.
        seconds: what the pass took with all that the engine did since the latest drafts were made.
    """

    requests: Sequence[RunningRequest]
    states: Tensor
    all_states: Tensor
    logits: Tensor | None
    gone: Collection[str]
    seconds: float

    @property
    def is_decoding(self) -> bool:
        """Whether the pass read nothing but newest tokens and drafts, so that its time tells what those cost."""
        return all(one.scheduled == 1 + one.drafted and one.sampled > 0 for one in self.requests)
