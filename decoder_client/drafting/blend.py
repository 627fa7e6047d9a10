"""Joins the proposals of several drafters into one draft tree: weights add up where paths agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoder_client.drafting.drafter import Drafter, DraftRequest
from dresd.draft_tree import PAD, DraftTree, merge_paths


class Blend:
    """Drafters asked together; their tree has one source of mass for each, in their order."""

    def __init__(self, drafters: Sequence[Drafter], *, vocab_size: int) -> None:
        """Blends `drafters`; tokens the target does not have (`vocab_size`) are cut off."""
        self._drafters = tuple(drafters)
        self._vocab_size = vocab_size

    def __bool__(self) -> bool:
        return bool(self._drafters)

    def begin(self) -> None:
        """A new sequence starts."""
        for drafter in self._drafters:
            drafter.begin()

    def propose(self, request: DraftRequest) -> DraftTree:
        """The heaviest `max_nodes` nodes of all proposals, at most `max_depth` deep; possibly none."""
        sources = len(self._drafters)
        proposals = [(source, drafter.propose(request)) for source, drafter in enumerate(self._drafters)]
        given = [(source, proposal) for source, proposal in proposals if proposal is not None]
        if not given:
            return DraftTree.empty(max(sources, 1))
        depth = min(request.max_depth, max(proposal.paths.shape[1] for _, proposal in given))
        count = sum(len(proposal.paths) for _, proposal in given)
        paths = np.full((count, depth), PAD, np.int32)
        weights = np.zeros((count, sources))
        begin = 0
        for source, proposal in given:
            end = begin + len(proposal.paths)
            paths[begin:end, : proposal.paths.shape[1]] = proposal.paths[:, :depth]
            weights[begin:end, source] = proposal.weights
            begin = end
        unusable = (paths < 0) | (paths >= self._vocab_size)
        paths[np.logical_or.accumulate(unusable, axis=1)] = PAD
        queries = np.zeros(count, np.int64)
        return merge_paths(queries, paths, weights, num_queries=1, max_nodes=request.max_nodes)[0]
