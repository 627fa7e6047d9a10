"""Walks known answers through a drafter, step by step as the decode loop would, without a target model.

A step asks for a draft and accepts the longest prefix of the known answer that the tree holds, and one token more; a
step without a draft gives one token. So the drafts are those of decoding, and so are all counts. Knows traces and the
`Drafter` protocol; not what a drafter is made of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from decoder_client.drafting.drafter import DraftRequest, LikelyTokens, Outcome
from decoder_client.evaluation.recording import Recording, RecordingDrafter
from decoder_client.evaluation.traces import Trace
from decoder_client.stats import GenerationStats
from decoder_client.verification import accept
from dresd.draft_tree import PAD, DraftTree

SessionOf = TypeVar("SessionOf", contravariant=True)

PassSeconds = Callable[[int], float]
"""Seconds of a forward pass over so many tokens."""


@runtime_checkable
class VerifiesMore(Protocol[SessionOf]):
    """A drafter whose published method verifies more tokens than its merged tree holds."""

    def verified(self, session: SessionOf) -> int:
        """Tokens that the published method verifies for the latest draft."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One answer replayed: what it cost, and what was seen of its drafts."""

    stats: GenerationStats
    recording: Recording


def replay(
    drafter: RecordingDrafter,
    trace: Trace,
    *,
    max_nodes: int,
    max_depth: int,
    max_new_tokens: int,
    pass_seconds: PassSeconds | None,
    counts: VerifiesMore[object] | None = None,
) -> Replayed:
    """Replays one answer.

    Args:
        drafter: asked and told as in decoding.
        trace: the known answer.
        max_nodes: of a draft; 0 asks for none.
        max_depth: of a draft.
        max_new_tokens: the limit that the answer was made under: no draft reaches beyond it.
        pass_seconds: predicts `forward_s` and `total_s`; without it they are 0. The prompt's pass counts as a pass of
            one token, for every method alike.
        counts: overrides the number of drafted tokens.
    """
    stats = GenerationStats()
    tokens, prompt = trace.tokens, len(trace.record.prompt)
    end = prompt + max_new_tokens
    started = time.perf_counter()
    session = drafter.start(tokens[:prompt])
    text = list(tokens[: prompt + 1])
    nothing = DraftTree.empty()
    drafter.observe(session, Outcome(text, 1, nothing, [], trace.states[:prompt], _Likely(trace, prompt - 1, prompt)))
    stats.draft_s += time.perf_counter() - started
    stats.forwards = 1
    forward_s = pass_seconds(1) if pass_seconds else 0.0
    while len(text) < len(tokens):
        drafting = time.perf_counter()
        depth = min(max_depth, end - len(text) - 1)
        tree = nothing
        if max_nodes and depth >= 1:
            state = trace.states[len(text) - 2]
            tree = drafter.propose([DraftRequest(session, text, state, max_nodes, depth, stats)])[0]
        proposed = time.perf_counter()
        before = len(text)
        known = tokens[before:]
        # The last token is always the target's own: nothing is drafted behind the end of an answer.
        nodes = accept(tree, _KnownTokens(known)).nodes[: len(known) - 1]
        text += known[: len(nodes) + 1]
        drafted = counts.verified(session) if counts is not None and len(tree) else len(tree)
        observing = time.perf_counter()
        rows = before - 1, before + len(nodes)
        states, likely = trace.states[slice(*rows)], _Likely(trace, *rows)
        drafter.observe(session, Outcome(text, len(nodes) + 1, tree, nodes, states, likely))
        stats.draft_s += proposed - drafting + time.perf_counter() - observing
        stats.forwards += 1
        stats.steps += 1
        stats.steps_with_draft += len(tree) > 0
        stats.drafted += drafted
        stats.accepted += len(nodes)
        forward_s += pass_seconds(1 + drafted) if pass_seconds else 0.0
    stats.tokens = len(tokens) - prompt
    if pass_seconds is not None:
        stats.forward_s = forward_s
        stats.total_s = forward_s + stats.draft_s
    return Replayed(stats, drafter.recording())


@dataclass(frozen=True, slots=True)
class _KnownTokens:
    """Chooses what the answer holds, and nothing that could have been drafted once it has ended."""

    tokens: Sequence[int]

    def __call__(self, _row: int, taken: list[int]) -> int:
        return self.tokens[len(taken)] if len(taken) < len(self.tokens) else PAD


@dataclass(frozen=True, slots=True)
class _Likely:
    """The likeliest tokens at some positions of a trace; what a rejected node would have given is unknown here."""

    trace: Trace
    begin: int
    end: int

    def __call__(self, *, rejected: bool = False) -> LikelyTokens:
        del rejected
        tokens = np.array([-1, *self.trace.tokens[: self.end]], np.int64)
        contexts = np.stack([tokens[:-1], tokens[1:]], axis=1)[self.begin :]
        rows = slice(self.begin, self.end)
        return LikelyTokens(contexts, self.trace.next_tokens[rows].numpy(), self.trace.probabilities[rows].numpy())
