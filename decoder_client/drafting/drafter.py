"""What a drafter is asked, what it answers, and what it is told afterwards.

A drafter may propose anything: what it proposes decides the speed, never the output. It is asked for several sequences
at once, so that one that calls a service calls it once a step. Knows no model, no service and no decode loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from decoder_client.reducer import KeyReducer
from decoder_client.stats import GenerationStats
from dresd.draft_tree import DraftTree

Session = TypeVar("Session")
"""What a drafter keeps of one sequence."""


@dataclass(frozen=True, slots=True)
class DraftRequest(Generic[Session]):
    """One sequence's question: what may follow `text`?

    Attributes:
        session: what `Drafter.start` returned for this sequence.
        text: token ids so far, prompt included; the last one is the token just chosen.
        state: [hidden_size], the state that predicted that token, on the model's device.
        max_nodes: nodes of the tree wanted, at most; at least 1.
        max_depth: its depth, at most; at least 1.
        stats: of the answer; a drafter that waits for others notes it there.
    """

    session: Session
    text: Sequence[int]
    state: Tensor
    max_nodes: int
    max_depth: int
    stats: GenerationStats


@dataclass(frozen=True, slots=True)
class LikelyTokens:
    """The target's likeliest next tokens in r places.

    Attributes:
        contexts: int64 [r, 2], the token before the last one (-1 for none) and the last one.
        next_tokens: int64 [r, k], likeliest first.
        probabilities: float32 [r, k], by the target's unwarped distribution.
    """

    contexts: NDArray[np.int64]
    next_tokens: NDArray[np.int64]
    probabilities: NDArray[np.float32]


class Likely(Protocol):
    """Computes the target's likeliest tokens at the rows of one pass; costs a look at all their logits."""

    def __call__(self, *, rejected: bool = False) -> LikelyTokens:
        """Those after the newest token and the accepted nodes, in order; after rejected nodes, too, if asked for."""


@dataclass(frozen=True, slots=True)
class MadeKeys:
    """Keys of some states, made by whoever could make those of many sequences at once.

    Attributes:
        reducer: made them.
        keys: float32 [rows, dims].
    """

    reducer: KeyReducer
    keys: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pass of the target showed.

    Attributes:
        text: token ids after the pass; the last `count` of them are new.
        count: accepted nodes and one more; may be less where the answer ended.
        tree: the draft that was verified, perhaps empty.
        nodes: accepted nodes, a path from the root.
        states: [rows, hidden_size]: that of the newest token before the pass and those of the accepted nodes, so
            that row i predicted new token i; for the prompt's pass those of all prompt tokens.
        likely: of this pass; of the prompt's pass for its last token only.
        made_keys: those of `states`, if they are made already; a drafter makes keys of another reducer itself.
    """

    text: Sequence[int]
    count: int
    tree: DraftTree
    nodes: Sequence[int]
    states: Tensor
    likely: Likely
    made_keys: MadeKeys | None = None


class Drafter(Protocol[Session]):
    """A source of draft trees for any number of sequences."""

    def start(self, prompt: Sequence[int]) -> Session:
        """A new sequence starts."""

    def propose(self, requests: Sequence[DraftRequest[Session]]) -> list[DraftTree]:
        """One tree a request, possibly empty; must not raise for trouble outside this process."""

    def observe(self, session: Session, outcome: Outcome) -> None:
        """What the target made of the latest draft, the prompt's pass (without a draft) included."""


AnyDrafter = Drafter[object]
"""A drafter whose sessions nobody else looks into."""


def any_drafter(drafter: Drafter[Session]) -> AnyDrafter:
    """The same drafter: a session goes back only to the drafter that made it, so nobody else needs its type."""
    return cast("AnyDrafter", drafter)


class NoDrafter:
    """Plain decoding: proposes nothing."""

    def start(self, prompt: Sequence[int]) -> object:  # noqa: ARG002
        """See `Drafter`."""
        return None

    def propose(self, requests: Sequence[DraftRequest[object]]) -> list[DraftTree]:
        """See `Drafter`."""
        return [DraftTree.empty()] * len(requests)

    def observe(self, session: object, outcome: Outcome) -> None:
        """See `Drafter`."""
