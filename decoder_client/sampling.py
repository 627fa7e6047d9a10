"""How the target chooses its next token from logits: greedily, or by sampling from a warped distribution.

The warping is transformers' own (temperature, top-k, top-p, repetition penalty, or any processors handed over). One
choice draws one sample, in the order of the text, so with the same seed the tokens are the same with and without
drafts. This module knows logits and prefixes, not drafts or models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from decoder_client.errors import DecoderError
from decoder_client.settings import check_setting
from decoder_client.verification import Choose

if TYPE_CHECKING:
    ScoreProcessor = Callable[[Tensor, Tensor], Tensor]


class LogitsError(DecoderError):
    """The model gives logits that nothing can be chosen from."""


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How tokens are chosen. Checks itself: `SettingError` names the field; `settings` says what it may be.

    Attributes:
        temperature: 0 for greedy decoding.
        top_k: sample among the k likeliest tokens; None for all.
        top_p: sample among the likeliest tokens that hold this probability together; None for all.
        repetition_penalty: above 1 makes tokens of the prompt and the answer less likely; applies to greedy, too.
        seed: of the samples; None takes torch's global random state.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k", "top_p", "repetition_penalty", "seed"):
            value = getattr(self, name)
            if value is not None or name in ("temperature", "repetition_penalty"):
                check_setting(name, value)

    def chooser(self, device: torch.device) -> Chooser:
        """The chooser of one answer, with its own random state if a seed is set."""
        processors = LogitsProcessorList()
        if self.repetition_penalty != 1.0:
            processors.append(RepetitionPenaltyLogitsProcessor(penalty=self.repetition_penalty))
        if self.temperature == 0.0:
            return ProcessedChooser(processors) if processors else GreedyChooser()
        if self.temperature != 1.0:
            processors.append(TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k is not None:
            processors.append(TopKLogitsWarper(top_k=self.top_k))
        if self.top_p is not None and self.top_p < 1.0:
            processors.append(TopPLogitsWarper(top_p=self.top_p))
        generator = None if self.seed is None else torch.Generator(device).manual_seed(self.seed)
        return ProcessedChooser(processors, sample=True, generator=generator)


class Chooser(Protocol):
    """Turns the logits of one pass into choices.

    Raises `LogitsError` (a `DecoderError`) if an answer's first logits are NaN or infinite.
    """

    def begin(self, tokens: Sequence[int], room: int, device: torch.device, /) -> None:
        """Starts an answer after the prompt `tokens`; at most `room` tokens follow."""

    def choices(self, logits: Tensor, tokens: Sequence[int], /) -> Choose:
        """The choices on `logits` [rows, vocab_size], whose row 0 follows `tokens` (the whole text so far)."""


def _check_first(logits: Tensor) -> None:
    """Looks at the first row of an answer only: later ones follow from tokens that this one allowed.

    One number is asked of the device, and the highest logit tells all: it is NaN beside a NaN, and lone -inf are
    tokens that a model rules out.
    """
    if not math.isfinite(float(logits[0].max())):
        raise LogitsError(
            "The model's logits are not numbers (NaN or infinite): its weights are damaged, or overflow in this number "
            "format. Fetch or save the model again, or load it in float32."
        )


def _best(logits: Tensor) -> list[int]:
    """Each row's likeliest token, the first of equals."""
    # numpy compares by vector instructions, torch number by number: a tenth of the time over a large vocabulary.
    numbers = logits.numpy() if logits.device.type == "cpu" and logits.dtype == torch.float32 else logits
    best: list[int] = numbers.argmax(-1).tolist()
    return best


class GreedyChooser:
    """The likeliest token; one transfer from the device for all rows."""

    def __init__(self) -> None:
        self._checked = False

    def begin(self, _tokens: Sequence[int], _room: int, _device: torch.device) -> None:
        """See `Chooser`."""
        self._checked = False

    def choices(self, logits: Tensor, _tokens: Sequence[int]) -> Choose:
        """See `Chooser`."""
        if not self._checked:
            _check_first(logits)
            self._checked = True
        best = _best(logits)
        return lambda row, _accepted: best[row]


class ProcessedChooser:
    """The likeliest token of processed logits, or a sample of them; only rows that are asked for are processed."""

    def __init__(
        self, processors: ScoreProcessor, *, sample: bool = False, generator: torch.Generator | None = None
    ) -> None:
        self._processors = processors
        self._sample = sample
        self._generator = generator
        self._text = torch.zeros(1, 0, dtype=torch.int64)
        self._filled = 0
        self._checked = False

    def begin(self, tokens: Sequence[int], room: int, device: torch.device) -> None:
        """See `Chooser`."""
        length = len(tokens) + room
        if self._text.shape[1] < length or self._text.device != device:
            self._text = torch.zeros(1, length, dtype=torch.int64, device=device)
        self._filled = 0
        self._checked = False

    def choices(self, logits: Tensor, tokens: Sequence[int]) -> Choose:
        """See `Chooser`."""
        if not self._checked:
            _check_first(logits)
            self._checked = True

        def choose(row: int, accepted: list[int]) -> int:
            text = self._prefix(tokens, accepted)
            # Processors may write into their input, and `generate` gives them float32.
            scores = self._processors(text, logits[row : row + 1].to(torch.float32, copy=True))
            if not self._sample:
                return int(scores.argmax(-1))
            probabilities = torch.softmax(scores, dim=-1)
            return int(torch.multinomial(probabilities, 1, generator=self._generator))

        return choose

    def _prefix(self, tokens: Sequence[int], accepted: list[int]) -> Tensor:
        """int64 [1, length]: tokens and accepted; only those not yet on the device are sent there."""
        length = len(tokens) + len(accepted)
        new = [*tokens[self._filled :], *accepted[max(0, self._filled - len(tokens)) :]]
        if new:
            self._text[0, self._filled : length] = torch.tensor(new, device=self._text.device)
        self._filled = length
        return self._text[:, :length]
