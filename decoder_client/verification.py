"""Which part of a draft tree the target model agrees with.

One rule for greedy decoding and for sampling: at each position the target chooses its token once, as it would without
a draft; a draft node that guessed that token lets the walk go on from its row. So the tokens are exactly the target's
(its argmax, or one sample from its distribution given the tokens before), whatever was drafted. Choosing once a node
is what makes it exact: samples drawn independently for several rows of the same prefix, of which the longest match is
kept, favour what was drafted.

This module knows trees and choices, not logits or models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dresd.draft_tree import ROOT, DraftTree

Choose = Callable[[int, list[int]], int]
"""(row, tokens accepted so far) -> the target's next token. Row 0 predicts what follows the newest token, row i + 1
what follows draft node i."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The outcome of one verification.

    Attributes:
        nodes: accepted nodes, a path from the root; empty if the first choice was not drafted.
        tokens: the target's tokens, one more than `nodes`: the last one was not drafted (or ends the answer).
    """

    nodes: list[int]
    tokens: list[int]

    @property
    def last_row(self) -> int:
        """The row that predicted the last token."""
        return self.nodes[-1] + 1 if self.nodes else 0


def accept(tree: DraftTree, choose: Choose, ends: Collection[int] = ()) -> Accepted:
    """Walks the tree along the target's own choices.

    Args:
        tree: siblings have distinct tokens.
        choose: called once for each row visited, in order.
        ends: tokens after which nothing may follow; the walk stops at one even if it was drafted.
    """
    children: dict[tuple[int, int], int] = {
        edge: node for node, edge in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
    }
    nodes: list[int] = []
    tokens: list[int] = []
    at = ROOT
    while True:
        token = choose(at + 1, tokens)
        child = None if token in ends else children.get((at, token))
        if child is None:
            return Accepted(nodes, [*tokens, token])
        tokens.append(token)
        nodes.append(child)
        at = child
