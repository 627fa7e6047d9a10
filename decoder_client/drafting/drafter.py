"""What a drafter is asked and what it answers.

A drafter proposes weighted paths. Weights are comparable across drafters: 1 is the weight that all dense neighbours
of one lookup have together. A drafter may propose anything: what it proposes decides the speed, never the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from decoder_client.stats import GenerationStats


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One step's question: what may follow `tokens`?

    Attributes:
        tokens: the text so far, prompt included; the last one is the token just chosen.
        state: [hidden_size], the state that predicted that token, on the model's device.
        max_nodes: nodes of the tree wanted, at least 1.
        max_depth: its depth, at least 1.
        stats: of the answer; a drafter that waits for others notes it there.
    """

    tokens: Sequence[int]
    state: Tensor
    max_nodes: int
    max_depth: int
    stats: GenerationStats


@dataclass(frozen=True, slots=True)
class Proposal:
    """Weighted paths of tokens that may follow.

    Attributes:
        paths: int32 [m, depth], `PAD` from each path's end on.
        weights: float64 [m], of the paths; non-negative.
    """

    paths: NDArray[np.int32]
    weights: NDArray[np.float64]


class Drafter(Protocol):
    """A source of drafts for one sequence at a time."""

    def begin(self) -> None:
        """Forgets the sequence before; another one starts."""

    def propose(self, request: DraftRequest) -> Proposal | None:
        """Paths after the newest token; None without an idea. Must not raise for trouble outside this process."""
