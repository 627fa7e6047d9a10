"""An engine without a model: it knows every request's answer, verifies drafts, and shows steps as a real one does.

The state at place p of request number r is (r, p, 0, ...), so that a test can tell which rows somebody was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from decoder_client.engines.vllm.engine_step import EngineStep, RunningRequest, TokenView

HIDDEN = 6
VOCAB = 64


class Drafts:
    """What an engine asks for drafts: `StepDrafter`, or something around it."""

    def step(self, step: EngineStep) -> list[list[int]]: ...


@dataclass
class _Request:
    number: int
    name: str
    text: np.ndarray
    prompt_length: int
    adapter: str
    length: int = 0
    read: int = 0
    draft: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return self.length == len(self.text)


class SimulatedEngine:
    """Serves requests in rounds.

    Attributes:
        steps: all that was shown so far.
    """

    def __init__(
        self,
        drafts: Drafts,
        *,
        most: int = 12,
        chunk: int = 1000,
        room: int = 1000,
        trim: Callable[[list[int]], list[int]] = list,
        with_logits: bool = True,
    ) -> None:
        """Verifies `most` draft tokens a request, reads `chunk` tokens of a prompt a step, cuts drafts by `trim`."""
        self._drafts = drafts
        self._most, self._chunk, self._room, self._trim = most, chunk, room, trim
        self._with_logits = with_logits
        self._running: list[_Request] = []
        self._gone: set[str] = set()
        self._count = 0
        self.steps: list[EngineStep] = []

    def add(self, name: str, prompt: Sequence[int], answer: Sequence[int], *, adapter: str = "") -> int:
        """A new request; returns its number."""
        text = np.array([*prompt, *answer], np.int32)
        self._running.append(_Request(self._count, name, text, len(prompt), adapter, length=len(prompt)))
        self._count += 1
        return self._count - 1

    def abort(self, name: str) -> None:
        self._running = [one for one in self._running if one.name != name]
        self._gone.add(name)

    def preempt(self, name: str) -> None:
        """The request's cache is lost; its text is read again."""
        for one in self._running:
            if one.name == name:
                one.read, one.draft = 0, []

    def run(self) -> None:
        while self._running:
            self.step()

    def step(self) -> EngineStep:
        requests, states, all_states, logits = [], [], [], []
        for one in self._running:
            scheduled = min(self._chunk, one.length - one.read) if not one.draft else 1 + len(one.draft)
            places = [one.read + offset for offset in range(scheduled)]
            all_states += [self._state(one, place) for place in places]
            drafted, one.draft = one.draft, []
            right = 0
            while (
                right < len(drafted)
                and one.length + right < len(one.text) - 1
                and drafted[right] == one.text[one.length + right]
            ):
                right += 1
            reads_end = places[-1] + 1 >= one.length
            sampled = right + 1 if reads_end else 0
            shown = places[-1 - len(drafted) :]
            states += [self._state(one, place) for place in shown]
            logits += [self._logits(one, place) for place in shown]
            one.read = places[0] + scheduled - len(drafted) + (sampled - 1 if reads_end else 0)
            one.length += sampled
            requests.append(
                RunningRequest(
                    request_id=one.name,
                    text=TokenView(one.text, one.length),
                    sampled=sampled,
                    drafted=len(drafted),
                    scheduled=scheduled,
                    room=min(self._most, len(one.text) - one.length - 1, self._room - one.length),
                    adapter=one.adapter,
                )
            )
        step = EngineStep(
            requests=requests,
            states=torch.tensor(states),
            all_states=torch.tensor(all_states),
            logits=torch.tensor(logits) if self._with_logits else None,
            gone=self._gone,
            seconds=1.0,
        )
        self._gone = set()
        self.steps.append(step)
        for one, draft in zip(self._running, self._drafts.step(step), strict=True):
            one.draft = self._trim(draft)
        self._gone |= {one.name for one in self._running if one.is_done}
        self._running = [one for one in self._running if not one.is_done]
        return step

    @staticmethod
    def _state(one: _Request, place: int) -> list[float]:
        return [float(one.number), float(place)] + [0.0] * (HIDDEN - 2)

    @staticmethod
    def _logits(one: _Request, place: int) -> list[float]:
        logits = [0.0] * VOCAB
        if place + 1 < len(one.text):
            logits[int(one.text[place + 1]) % VOCAB] = 10.0
        return logits
