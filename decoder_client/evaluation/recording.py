"""Watches a drafter while it drafts: how deep its drafts were, how deep they were accepted, whose nodes those were.

Knows what drafters are told; neither who decodes nor how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decoder_client.drafting import AnyDrafter, DraftRequest, Outcome
from decoder_client.evaluation.results import MODEL, Promises
from dresd.draft_tree import DraftTree

_TENTHS = 10


@dataclass(frozen=True, slots=True)
class Recording:
    """What was seen over one answer.

    Attributes:
        offered_by_depth: element d - 1: steps whose draft was at least d deep.
        accepted_by_depth: element d - 1: steps in which at least d nodes were accepted; as long as the former.
        origins: of every token of the answer: a source of the drafter, or `MODEL`.
        steps: of every token of the answer: the pass that confirmed it, 0 for the prompt's.
        promises: draft nodes by tenths of their probability; empty for a drafter whose masses are none.
    """

    offered_by_depth: tuple[int, ...]
    accepted_by_depth: tuple[int, ...]
    origins: tuple[str, ...]
    steps: tuple[int, ...]
    promises: tuple[Promises, ...] = ()


class RecordingDrafter:
    """A drafter that hands everything on to another and notes the outcomes of one answer at a time."""

    def __init__(self, drafter: AnyDrafter, sources: Sequence[str], *, promises: bool = False) -> None:
        """Watches `drafter`, whose trees have a column of masses for each of `sources`, or one for all of them.

        With `promises` a node's masses sum to the probability that it is accepted.
        """
        self._promises = promises
        self._drafter = drafter
        self._sources = tuple(sources)
        self._outcomes: list[tuple[DraftTree, Sequence[int], int]] = []

    def start(self, prompt: Sequence[int]) -> object:
        """See `Drafter`; forgets the last answer's recording."""
        self._outcomes = []
        return self._drafter.start(prompt)

    def propose(self, requests: Sequence[DraftRequest[object]]) -> list[DraftTree]:
        """See `Drafter`."""
        return self._drafter.propose(requests)

    def observe(self, session: object, outcome: Outcome) -> None:
        """See `Drafter`."""
        # Looked at when the answer is complete, outside everything that is timed.
        self._outcomes.append((outcome.tree, outcome.nodes, outcome.count))
        self._drafter.observe(session, outcome)

    def recording(self) -> Recording:
        """Of the answer decoded last."""
        deepest = [int(tree.depths().max(initial=0)) for tree, _, _ in self._outcomes]
        accepted = [min(len(nodes), count) for _, nodes, count in self._outcomes]
        depths = range(1, max(deepest, default=0) + 1)
        origins: list[str] = []
        steps: list[int] = []
        for step, (tree, nodes, count) in enumerate(self._outcomes):
            drafted = [self._origin(tree, node) for node in nodes[:count]]
            origins += [*drafted, *[MODEL] * (count - len(drafted))]
            steps += [step] * count
        return Recording(
            tuple(sum(one >= depth for one in deepest) for depth in depths),
            tuple(sum(one >= depth for one in accepted) for depth in depths),
            tuple(origins),
            tuple(steps),
            self._kept_promises() if self._promises and self._outcomes else (),
        )

    def _kept_promises(self) -> tuple[Promises, ...]:
        probabilities = [tree.masses.sum(axis=1) for tree, _, _ in self._outcomes]
        accepted = [np.isin(np.arange(len(tree)), list(nodes[:count])) for tree, nodes, count in self._outcomes]
        promised, kept = np.concatenate(probabilities), np.concatenate(accepted)
        tenths = np.minimum((promised * _TENTHS).astype(np.int64), _TENTHS - 1)
        sizes = np.bincount(tenths, minlength=_TENTHS).tolist()
        sums = np.bincount(tenths, promised, _TENTHS).tolist()
        hits = np.bincount(tenths, kept, _TENTHS).astype(np.int64).tolist()
        return tuple(Promises(*tenth) for tenth in zip(sizes, sums, hits, strict=True))

    def _origin(self, tree: DraftTree, node: int) -> str:
        return self._sources[int(tree.masses[node].argmax()) if tree.masses.shape[1] == len(self._sources) else 0]
