"""Drafts for all requests of an engine's step: tells the drafter what the pass showed, and asks it for the next drafts.

The drafter is any `Drafter`; the one that drafts the best single path (`MixtureConfig(path=True)`) suits engines that
verify one draft a request. Knows `engine_step` only; no engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from decoder_client.drafting.drafter import Drafter, DraftRequest, LikelyTokens, MadeKeys, Outcome, Session
from decoder_client.drafting.retriever import Handshaken
from decoder_client.engines.vllm.engine_step import EngineStep
from decoder_client.engines.vllm.rows import RequestRows, likely_tokens, rows_of
from decoder_client.engines.vllm.sessions import KnownRequest, Sessions
from decoder_client.engines.vllm.switch import BatchSwitch
from decoder_client.likely import WIDTH
from decoder_client.stats import GenerationStats
from dresd.draft_tree import DraftTree

_MOST_DEPTH = 64
_NOTHING = LikelyTokens(np.zeros((0, 2), np.int64), np.zeros((0, WIDTH), np.int64), np.zeros((0, WIDTH), np.float32))


@dataclass(frozen=True, slots=True)
class _Known:
    """Something that was the same at all rows of a pass."""

    tokens: LikelyTokens

    def __call__(self, *, rejected: bool = False) -> LikelyTokens:  # noqa: ARG002 - an engine keeps rejected rows
        return self.tokens


class StepDrafter(Generic[Session]):
    """One engine's drafting. Not for several threads.

    Attributes:
        totals: what drafting cost and gained so far.
    """

    def __init__(
        self,
        drafter: Drafter[Session],
        switch: BatchSwitch,
        *,
        handshake: Callable[[], Handshaken | None],
        adapter: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Drafts by `drafter`, whose node budget is `switch`.

        Args:
            drafter: asked and told of all requests.
            switch: says in which steps.
            handshake: of the datastore served now; None without one.
            adapter: states of requests with another LoRA adapter are not looked up.
            clock: seconds.
        """
        self._drafter = drafter
        self._switch = switch
        self._handshake = handshake
        self._adapter = adapter
        self._clock = clock
        self._sessions: Sessions[Session] = Sessions(lambda: drafter.start(()))
        self.totals = GenerationStats()

    @property
    def num_sessions(self) -> int:
        """Requests that something is kept of."""
        return len(self._sessions)

    def step(self, step: EngineStep) -> list[list[int]]:
        """One draft a request, as the engine's next pass may verify it; [] for none."""
        started = self._clock()
        self._sessions.drop(step.gone)
        rows = rows_of(step)
        self._count(step, rows)
        if step.is_decoding:
            extra = sum(one.drafted for one in step.requests)
            tokens = sum(one.sampled for one in step.requests)
            self._switch.ended(len(step.requests), extra, tokens, step.seconds)
        drafts: list[list[int]] = [[] for _ in step.requests]
        if not rows:
            return drafts
        if self._switch.enter(len(rows)):
            self._propose(step, rows, self._observe(step, rows), drafts)
            seconds = self._clock() - started
            self._switch.drafted(seconds)
            self.totals.draft_s += seconds
            self.totals.total_s += seconds
        elif learned := [one for one in rows if self._sessions.drafted_for(one.request)]:
            # What came of the latest draft is worth knowing, though no other follows at once.
            self._observe(step, learned)
        return drafts

    def keep_only(self, running: Collection[str]) -> None:
        """Forgets all requests but these."""
        self._sessions.keep_only(running)

    def _count(self, step: EngineStep, rows: Sequence[RequestRows]) -> None:
        totals = self.totals
        for one in rows:
            drafted, sampled = one.request.drafted, one.request.sampled
            totals.tokens += sampled
            totals.forwards += 1
            if one.request.scheduled == 1 + drafted:
                totals.steps += 1
                totals.steps_with_draft += drafted > 0
                totals.drafted += drafted
                totals.accepted += sampled - 1
        totals.forward_s += step.seconds
        totals.total_s += step.seconds

    def _observe(self, step: EngineStep, rows: Sequence[RequestRows]) -> list[KnownRequest[Session]]:
        known = [self._sessions.of(one.request) for one in rows]
        states = self._states(step, rows, known)
        keys = self._keys(states)
        likely = None if step.logits is None else likely_tokens(rows, step.logits)
        for place, (one, request) in enumerate(zip(rows, known, strict=True)):
            text = one.request.text
            draft = _first(request.draft, one.request.drafted)
            accepted = min(one.request.sampled - 1, len(draft))
            self._drafter.observe(
                request.session,
                Outcome(
                    text=text,
                    count=len(text) - request.length,
                    tree=draft,
                    nodes=range(accepted),
                    states=states[place],
                    likely=_Known(_NOTHING if likely is None else likely[place]),
                    made_keys=None if keys is None else keys[place],
                ),
            )
            request.length, request.last_token = len(text), text[-1]
            request.draft = DraftTree.empty()
        return known

    def _states(
        self, step: EngineStep, rows: Sequence[RequestRows], known: Sequence[KnownRequest[Session]]
    ) -> list[Tensor]:
        """[n, hidden_size] for each request: the states that predicted its newest tokens, in order; of a new text
        those of all places that the pass read; none where the datastore was built with another adapter.
        """
        found = []
        for one, request in zip(rows, known, strict=True):
            if one.request.adapter != self._adapter:
                found.append(step.states[:0])
            elif request.length == 0 and one.prompt_count > 0:
                found.append(step.all_states[one.prompt_first : one.prompt_first + one.prompt_count])
            else:
                found.append(step.states[one.first : one.first + one.request.sampled])
        return found

    def _keys(self, states: Sequence[Tensor]) -> list[MadeKeys] | None:
        """All requests' keys, by one matrix product and one transfer."""
        handshake = self._handshake()
        if handshake is None:
            return None
        joined = states[0] if len(states) == 1 else torch.cat(list(states))
        made = handshake.reducer.reduce_torch(joined).float().cpu().numpy()
        ends = np.cumsum([len(one) for one in states])
        return [MadeKeys(handshake.reducer, made[end - len(one) : end]) for one, end in zip(states, ends, strict=True)]

    def _propose(
        self,
        step: EngineStep,
        rows: Sequence[RequestRows],
        known: Sequence[KnownRequest[Session]],
        drafts: list[list[int]],
    ) -> None:
        """Asks the drafter once, and puts what it says into `drafts`, in the order of the step's requests."""
        places = {one.request_id: place for place, one in enumerate(step.requests)}
        asking: list[tuple[int, KnownRequest[Session]]] = []
        requests: list[DraftRequest[Session]] = []
        for one, own in zip(rows, known, strict=True):
            room = min(one.request.room, _MOST_DEPTH)
            if room > 0:
                asking.append((places[one.request.request_id], own))
                state = step.states[one.first + one.request.sampled - 1]
                requests.append(DraftRequest(own.session, one.request.text, state, room, room, self.totals))
        if not requests:
            return
        for (place, own), tree in zip(asking, self._drafter.propose(requests), strict=True):
            own.draft = tree
            drafts[place] = tree.tokens.tolist()


def _first(draft: DraftTree, count: int) -> DraftTree:
    """The part of a path that the engine verified: a grammar or the room in a pass may have cut it."""
    return DraftTree(draft.tokens[:count], draft.parents[:count], draft.masses[:count])
