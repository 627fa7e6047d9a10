"""SuffixDecoding: suffix trees over earlier answers and over the text, drafting by the frequency of what followed.

Source: Oliaro et al., "SuffixDecoding" (arXiv 2411.04975), through its authors' own C++ suffix trees, which
`scripts/build_suffix_decoding.py` builds from the `arctic-inference` distribution, used as its Python cache uses them:
a global tree of the store's answers that grows with every answer decoded since, a local tree of prompt and answer, both
`MAX_TREE_DEPTH` deep; both draft and the higher score (the sum of estimated probabilities) wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoder_client.drafting.drafter import DraftRequest, Outcome
from decoder_client.evaluation.baselines.suffix_extension import NativeTree, NewTree
from decoder_client.evaluation.baselines.trees import arranged
from dresd.draft_tree import DraftTree

MAX_TREE_DEPTH = 64


@dataclass(frozen=True, slots=True)
class SuffixSettings:
    """How much is drafted: at most `factor` tokens for each matched one, none less probable than `min_probability`.

    The defaults are the published ones.
    """

    factor: float = 1.0
    min_probability: float = 0.1
    as_tree: bool = False


BEST = SuffixSettings(factor=4.0, min_probability=0.02, as_tree=True)
"""The best setting found at 8 nodes (of factors 1 to 64, probabilities 0.001 to 0.1)."""

WIDE = SuffixSettings(factor=16.0, min_probability=0.02, as_tree=True)
"""The best setting found at 64 nodes, of the same."""


@dataclass(slots=True)
class SuffixSession:
    """One text: its tree, its number in the global tree, and how many of its tokens the trees hold."""

    tree: NativeTree
    number: int
    length: int


class SuffixDecoding:
    """See the module; a `Drafter`."""

    def __init__(self, new_tree: NewTree, answers: Sequence[Sequence[int]], settings: SuffixSettings) -> None:
        """Drafts from `answers`, from those decoded since, and from the text; `new_tree` makes the trees."""
        self._new_tree = new_tree
        self._settings = settings
        self._store = new_tree(MAX_TREE_DEPTH)
        self._stored = 0
        for answer in answers:
            self._store.extend(self._stored, list(answer))
            self._stored += 1

    def start(self, prompt: Sequence[int]) -> SuffixSession:
        """See `Drafter`."""
        tree = self._new_tree(MAX_TREE_DEPTH)
        tree.extend(0, list(prompt))
        self._stored += 1
        return SuffixSession(tree, self._stored, len(prompt))

    def propose(self, requests: Sequence[DraftRequest[SuffixSession]]) -> list[DraftTree]:
        """See `Drafter`."""
        return [self._propose(request) for request in requests]

    def observe(self, session: SuffixSession, outcome: Outcome) -> None:
        """Adds the new tokens to both trees."""
        new = list(outcome.text[session.length :])
        session.tree.extend(0, new)
        self._store.extend(session.number, new)
        session.length = len(outcome.text)

    def _propose(self, request: DraftRequest[SuffixSession]) -> DraftTree:
        context = list(request.text[-MAX_TREE_DEPTH:])
        limits = (request.max_nodes, self._settings.factor, 0.0, self._settings.min_probability)
        local, stored = (
            tree.speculate(context, *limits, self._settings.as_tree) for tree in (request.session.tree, self._store)
        )
        draft = local if local.score >= stored.score else stored
        return arranged(draft.token_ids, draft.parents, draft.probs, request.max_depth)
