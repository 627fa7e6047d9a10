"""What a decoder gets for a batch: a draft a query, and how much of the datastore they come from.

Values only; knows no servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decoder_client.wire import Draft
from dresd.draft_tree import DraftTree
from dresd.path_merging import merge_trees


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the datastore the drafts of a batch come from.

    Attributes:
        partitions_asked: those that hold entries of the batch's next tokens; a batch that takes several requests to a
            server counts a partition once for each.
        partitions_answered: those of them that were searched.
    """

    partitions_asked: int = 0
    partitions_answered: int = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing is missing."""
        return self.partitions_answered >= self.partitions_asked


class Drafts(list[Draft]):
    """One draft a query, in the batch's order.

    Attributes:
        coverage: of all of them together. What did not answer is missing from the drafts of its tokens.
    """

    def __init__(self, drafts: Sequence[Draft] = (), coverage: Coverage = Coverage()) -> None:
        super().__init__(drafts)
        self.coverage = coverage


def together(drafts: Sequence[Draft], max_nodes: int) -> Draft:
    """The draft of one query from the partitions of its token."""
    if len(drafts) == 1:
        return drafts[0]
    if not drafts:
        return Draft(DraftTree.empty(2), np.zeros(2), 0.0, 0, (0, 0))
    found = [draft for draft in drafts if draft.neighbors[0]]
    return Draft(
        tree=merge_trees([draft.tree for draft in drafts], max_nodes),
        total_masses=np.sum([draft.total_masses for draft in drafts], axis=0),
        best_similarity=max((draft.best_similarity for draft in found), default=0.0),
        longest_match=max(draft.longest_match for draft in drafts),
        neighbors=(sum(draft.neighbors[0] for draft in drafts), sum(draft.neighbors[1] for draft in drafts)),
    )
