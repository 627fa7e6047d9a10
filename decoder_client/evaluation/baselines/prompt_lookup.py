"""Prompt lookup: what followed the last tokens where they stood before, in prompt and answer.

Source: Saxena, "Prompt Lookup Decoding" (2023), with its settings: n-grams of 3, 2, 1 tokens, the longest first; one
draft of 10 tokens. Deviation: of several matches the most recent one is taken (published: the earliest), which drafts
better. Earlier n-grams are kept in hash maps instead of being searched for at every step; the drafts are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decoder_client.drafting.drafter import DraftRequest, Outcome
from decoder_client.evaluation.baselines.trees import path_tree
from dresd.draft_tree import DraftTree

LONGEST_NGRAM = 3
DRAFT_TOKENS = 10


@dataclass(slots=True)
class PromptLookupSession:
    """The text's n-grams.

    Attributes:
        ends: element n - 1: n-gram -> place after its latest occurrence that has a continuation.
        indexed: tokens whose n-grams are in `ends`.
    """

    ends: list[dict[tuple[int, ...], int]] = field(default_factory=lambda: [{} for _ in range(LONGEST_NGRAM)])
    indexed: int = 0


class PromptLookup:
    """See the module; a `Drafter`."""

    def start(self, prompt: Sequence[int]) -> PromptLookupSession:
        """See `Drafter`."""
        del prompt
        return PromptLookupSession()

    def propose(self, requests: Sequence[DraftRequest[PromptLookupSession]]) -> list[DraftTree]:
        """See `Drafter`."""
        return [self._propose(request) for request in requests]

    def observe(self, session: PromptLookupSession, outcome: Outcome) -> None:
        """Nothing to learn: the text comes with the next request."""

    def _propose(self, request: DraftRequest[PromptLookupSession]) -> DraftTree:
        session, text = request.session, request.text
        last = len(text) - 1
        # Only n-grams that something follows: those that end before the last token.
        for end in range(session.indexed + 1, last + 1):
            for length, ends in enumerate(session.ends, start=1):
                if length <= end:
                    ends[tuple(text[end - length : end])] = end
        session.indexed = max(session.indexed, last)
        length = min(DRAFT_TOKENS, request.max_depth, request.max_nodes)
        for ngram in range(min(LONGEST_NGRAM, last), 0, -1):
            begin = session.ends[ngram - 1].get(tuple(text[-ngram:]))
            if begin is not None:
                return path_tree(text[begin : begin + length])
        return DraftTree.empty()
