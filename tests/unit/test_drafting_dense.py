"""The dense drafter asks with the reduced state and the newest token, and weighs what it gets by the whole mass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder_client.drafting import DenseDrafter, DraftRequest
from decoder_client.stats import GenerationStats
from dresd.draft_tree import PAD
from tests.support.drafts import FakeRetriever, some_reducer

HIDDEN = 6


def request(stats: GenerationStats | None = None) -> DraftRequest:
    state = torch.linspace(-1, 1, HIDDEN)
    return DraftRequest([4, 7], state, max_nodes=12, max_depth=3, stats=stats or GenerationStats())


def test_the_query_is_the_reduced_state_and_the_newest_token() -> None:
    retriever = FakeRetriever(some_reducer(HIDDEN), paths=[[1]])
    DenseDrafter(retriever, neighbors=20, temperature=0.2).propose(request())
    [(keys, next_tokens, limits)] = retriever.asked
    expected = retriever.reducer.reduce(request().state[None].numpy())
    assert keys.dtype == np.float16
    np.testing.assert_allclose(keys, expected, atol=1e-3)
    assert next_tokens == [7]
    assert limits == {"neighbors": 20, "max_nodes": 12, "max_depth": 3, "temperature": 0.2}


def test_weights_are_shares_of_the_mass_of_all_neighbours() -> None:
    retriever = FakeRetriever(some_reducer(HIDDEN), paths=[[1, 2], [1, 2], [3]], total_mass=4.0)
    proposal = DenseDrafter(retriever).propose(request())
    assert proposal is not None
    paths = [tuple(token for token in path if token != PAD) for path in proposal.paths.tolist()]
    found = dict(zip(paths, proposal.weights.tolist(), strict=True))
    assert found == pytest.approx({(1, 2): 0.5, (3,): 0.25})


@pytest.mark.parametrize(("down", "paths", "answered"), [(True, [[1]], 0), (False, [], 1)])
def test_no_answer_and_an_empty_answer_are_no_draft(down: bool, paths: list[list[int]], answered: int) -> None:
    stats = GenerationStats()
    retriever = FakeRetriever(some_reducer(HIDDEN), paths=paths, down=down)
    assert DenseDrafter(retriever).propose(request(stats)) is None
    assert (stats.retrievals, stats.retrievals_answered) == (1, answered)
    assert stats.retrieval_s > 0
