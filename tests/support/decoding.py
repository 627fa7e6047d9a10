"""A sequence that is decoded without a model: a test says what the target says, a drafter drafts and is told.

And the mixture drafter as tests make it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from decoder_client.drafting import (
    AnyDrafter,
    DraftRequest,
    LikelyTokens,
    MixtureConfig,
    MixtureDrafter,
    NodeBudget,
    Outcome,
    any_drafter,
)
from decoder_client.stats import GenerationStats
from decoder_client.verification import accept
from dresd.draft_tree import ROOT, DraftTree
from tests.support.drafts import FakeRetriever, handshake_of, node_paths, some_reducer

HIDDEN = 6

Says = Callable[[int, int], dict[int, float]]
"""(previous token, -1 for none; token) -> the target's likeliest next tokens; as many each time."""


def nothing(_previous: int, _token: int) -> dict[int, float]:
    return {0: 0.0}


class Decoding:
    """One sequence.

    Attributes:
        text: prompt and answer so far.
        states: [length - 1, hidden_size]; the one at a position predicted the token after it.
        tree: drafted for the coming pass.
        outcomes: what the drafter was told.
    """

    def __init__(
        self,
        drafter: AnyDrafter,
        prompt: Sequence[int],
        first: int,
        *,
        hidden_size: int = HIDDEN,
        says: Says = nothing,
        seed: int = 0,
    ) -> None:
        self._drafter = drafter
        self._says = says
        self._hidden_size = hidden_size
        self._random = torch.Generator().manual_seed(seed)
        self.text = list(prompt)
        self.states = torch.zeros(0, hidden_size)
        self.tree = DraftTree.empty()
        self.stats = GenerationStats()
        self.outcomes: list[Outcome] = []
        self._session = drafter.start(prompt)
        self._tell([], [first], len(prompt))

    def request(self, *, nodes: int = 64, depth: int = 16) -> DraftRequest[object]:
        return DraftRequest(self._session, self.text, self.states[-1], nodes, depth, self.stats)

    def draft(self, *, nodes: int = 64, depth: int = 16) -> DraftTree:
        [self.tree] = self._drafter.propose([self.request(nodes=nodes, depth=depth)])
        return self.tree

    def hear(self, answer: Sequence[int]) -> int:
        """A pass in which the target says `answer`, of which a token more than was drafted is heard; returns how many.

        Where the draft holds all of it, the answer ends within the draft.
        """
        accepted = accept(self.tree, lambda _row, before: answer[len(before)] if len(before) < len(answer) else -1)
        count = min(len(accepted.tokens), len(answer))
        self._tell(accepted.nodes, list(answer[:count]), len(accepted.tokens))
        return count

    def _tell(self, nodes: list[int], new: list[int], rows: int) -> None:
        states = torch.randn(rows, self._hidden_size, generator=self._random)
        self.states = torch.cat([self.states, states])
        before = self.text[-2:]
        self.text += new
        tree, self.tree = self.tree, DraftTree.empty()

        def likely(*, rejected: bool = False) -> LikelyTokens:
            contexts = [tuple([-1, *before][-2:])]
            for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
                contexts.append((contexts[parent + 1][1], token))
            shown = range(len(contexts)) if rejected else [ROOT + 1, *(node + 1 for node in nodes)]
            said = [self._says(*contexts[row]) for row in shown]
            return LikelyTokens(
                np.array([contexts[row] for row in shown], np.int64),
                np.array([list(one) for one in said], np.int64),
                np.array([list(one.values()) for one in said], np.float32),
            )

        outcome = Outcome(self.text, len(new), tree, nodes, states, likely)
        self.outcomes.append(outcome)
        self._drafter.observe(self._session, outcome)


LARGE_VOCABULARY = 10_000


def mixture(
    retriever: FakeRetriever | None = None,
    *,
    vocab_size: int = LARGE_VOCABULARY,
    budget: NodeBudget | None = None,
    **config: object,
) -> AnyDrafter:
    """The drafter under test; `config`: of `MixtureConfig`."""
    settings = MixtureConfig(**config)
    return any_drafter(MixtureDrafter(retriever, vocab_size=vocab_size, config=settings, budget=budget))


def connected(
    paths: Sequence[Sequence[int]] = (), *, masses: tuple[float, float] = (1.0, 0.0), **handshake: object
) -> FakeRetriever:
    """A retriever whose keys are of `HIDDEN` numbers; `handshake`: see `handshake_of`."""
    return FakeRetriever(handshake_of(some_reducer(HIDDEN), **handshake), paths, masses)


def probability(tree: DraftTree, *path: int) -> float:
    """Of one node; 0 if it was not drafted."""
    found = dict(zip(node_paths(tree), tree.masses.sum(axis=1).tolist(), strict=True))
    return found.get(path, 0.0)
