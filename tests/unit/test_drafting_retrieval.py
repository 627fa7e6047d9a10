"""When the mixture asks its retriever, for what, and what its budget has to say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from decoder_client.drafting import CostBudget, CostCurve, MixtureConfig, RetrievalConfig
from dresd.draft_tree import PAD, DraftTree
from tests.support.decoding import HIDDEN, Decoding, connected, mixture
from tests.support.drafts import FakeRetriever, handshake_of, node_paths, some_reducer

NO_TEMPERATURES = (0.0, -1.0, float("nan"), float("inf"))


def test_the_query_is_the_newest_tokens_key_and_what_stands_before_it() -> None:
    retriever = connected([[1]], left_context_length=4)
    config = RetrievalConfig(neighbors=20, sparse_neighbors=30, nodes=40, temperature=0.2)
    drafter = mixture(retriever, retrieval=config)
    one, other = Decoding(drafter, [11, 12, 13, 14, 15], 16, seed=1), Decoding(drafter, [21], 22, seed=2)
    drafter.propose([one.request(depth=3), other.request(depth=7)])
    [call] = retriever.asked  # one call for all
    assert call.keys.dtype == np.float16
    handshake = retriever.handshake
    assert handshake is not None
    expected = handshake.reducer.reduce(torch.stack([one.states[-1], other.states[-1]]).numpy())
    np.testing.assert_allclose(call.keys, expected, atol=2e-3)
    assert call.next_tokens == [16, 22]
    assert call.left_contexts.dtype == np.int32
    assert call.left_contexts.tolist() == [[15, 14, 13, 12], [21, PAD, PAD, PAD]]
    assert (call.neighbors, call.sparse_neighbors, call.max_nodes, call.max_depth) == (20, 30, 40, 7)
    assert (call.temperature, call.match_temperature) == (0.2, config.match_temperature)
    for each in (one, other):
        assert (each.stats.retrievals, each.stats.retrievals_answered) == (1, 1)
        assert each.stats.retrieval_s > 0.0


def test_a_retriever_that_is_not_connected_is_used_from_the_handshake_on() -> None:
    retriever = FakeRetriever(None, [[20]])
    one = Decoding(mixture(retriever), [1, 2], 3)
    assert len(one.draft()) == 0
    assert retriever.asked == []
    retriever.handshake = handshake_of(some_reducer(HIDDEN))
    one.draft()
    assert retriever.asked == []  # there is no key yet: it takes a state, and those are seen once
    one.hear([4])
    assert node_paths(one.draft()) == [(20,)]


def test_another_build_is_asked_with_its_own_keys() -> None:
    retriever = connected([[20]])
    one = Decoding(mixture(retriever, places=0), [1, 2], 3)
    one.draft()
    one.hear([4])
    second = handshake_of(some_reducer(HIDDEN, dims=3, seed=5), left_context_length=2)
    first, retriever.handshake = retriever.handshake, second
    one.draft()
    assert retriever.asked[-1].reducer is first.reducer  # who made the key that there is
    one.hear([5])
    one.draft()
    call = retriever.asked[-1]
    assert call.reducer is second.reducer
    np.testing.assert_allclose(call.keys, second.reducer.reduce(one.states[-1:].numpy()), atol=2e-3)
    assert call.left_contexts.tolist() == [[4, 3]]


def test_keys_of_another_build_are_not_compared_with() -> None:
    """A sequence that changes builds drafts like one that met the second build first."""
    trees = []
    for first in (handshake_of(some_reducer(HIDDEN)), None):
        retriever = FakeRetriever(first)
        one = Decoding(mixture(retriever, tables=False), [5, 60, 6, 5, 61, 7, 5, 62, 8], 9)
        retriever.handshake = handshake_of(some_reducer(HIDDEN, seed=5))
        for token in (63, 5):
            one.hear([token])
        trees.append(one.draft())
    same, late = trees
    assert node_paths(same) == node_paths(late)
    assert len(same) > 2
    np.testing.assert_allclose(same.masses, late.masses)


def test_while_the_retriever_is_down_its_last_answer_goes_on() -> None:
    retriever = connected([[20, 21, 22], [20, 25], [30]])
    one = Decoding(mixture(retriever, places=0, tables=False), [1, 2], 3)
    one.draft()
    retriever.down = True
    one.tree = DraftTree.empty()
    one.hear([20])
    assert set(node_paths(one.draft())) == {(21,), (21, 22), (25,)}
    assert (one.stats.retrievals, one.stats.retrievals_answered) == (2, 1)
    one.tree = DraftTree.empty()
    one.hear([21])
    assert node_paths(one.draft()) == [(22,)]
    one.hear([40])
    assert len(one.draft()) == 0


class Noting:
    """A budget that takes a number of nodes, and notes what it is asked and told."""

    token_s: float | None = None
    floor = 1e-3

    def __init__(self, count: int, *, open_at: Sequence[bool] = (True,)) -> None:
        self._count = count
        self._open_at = open_at
        self._steps = 0
        self.begun = 0
        self.asked: list[list[list[float]]] = []
        self.told: list[int] = []

    def begin(self) -> None:
        self.begun += 1

    def opens(self) -> bool:
        self._steps += 1
        return self._open_at[(self._steps - 1) % len(self._open_at)]

    def choose(self, probabilities: Sequence[np.ndarray]) -> list[int]:
        self.asked.append([one.tolist() for one in probabilities])
        return [min(self._count, len(one)) for one in probabilities]

    def observe(self, tokens: int, draft_s: float) -> None:
        assert draft_s > 0.0
        self.told.append(tokens)


@pytest.mark.parametrize("path", [False, True])
def test_the_budget_chooses_among_the_likeliest(path: bool) -> None:
    retriever = connected([[20, 21, 22, 23], [30, 31], [40]])
    budget = Noting(2)
    one = Decoding(mixture(retriever, budget=budget, places=0, tables=False, path=path), [1, 2], 3)
    tree = one.draft()
    assert len(tree) == 2
    [[offered]] = budget.asked
    assert len(offered) == (4 if path else 7)
    assert offered == sorted(offered, reverse=True)
    np.testing.assert_allclose(tree.masses.sum(axis=1), offered[:2])
    assert budget.told == []  # the prompt's pass was not drafted for
    assert one.hear([20, 21, 9] if path else [int(tree.tokens[0]), 9]) == (3 if path else 2)
    one.hear([9])  # no draft, nothing to learn
    one.hear([9])
    assert budget.told == [3 if path else 2]
    assert budget.begun == 1


def test_a_step_that_is_not_open_asks_nobody_and_the_next_one_goes_on() -> None:
    retriever = connected([[20, 21]])
    budget = Noting(9, open_at=[True, False])
    one = Decoding(mixture(retriever, budget=budget, places=0), [1, 2], 3)
    for step in range(6):
        assert len(one.draft()) == (0 if step % 2 else 2)
        assert len(retriever.asked) == len(budget.asked) == step // 2 + 1
        one.hear([20, 4])
        # What came of a draft is looked at in the step after it.
        assert len(budget.told) == (step + 1) // 2
    # Three tokens have come since the last call: two of a draft, one without.
    assert retriever.asked[-1].left_contexts[0, :4].tolist() == one.text[-5:-9:-1]


class Slow(Noting):
    """A budget for which an accepted token saves next to nothing, so that no call is worth its wait; or very much."""

    def __init__(self, token_s: float) -> None:
        super().__init__(9)
        self.token_s = token_s


@pytest.mark.parametrize(("token_s", "paths", "often"), [(1e-12, [[20]], False), (1e3, [[20]], True), (1e3, [], False)])
def test_a_retriever_is_asked_as_long_as_its_answers_are_worth_the_wait(
    token_s: float, paths: list[list[int]], often: bool
) -> None:
    retriever = connected(paths)
    one = Decoding(mixture(retriever, budget=Slow(token_s), places=0, tables=False), [1, 2], 3)
    for _ in range(400):
        one.draft()
        one.hear([20, 4])
    if often:
        assert len(retriever.asked) == 400
    else:
        # First it is tried for a while, later now and then.
        assert 16 <= len(retriever.asked) < 40


def test_where_drafts_do_not_pay_none_are_made_until_they_do() -> None:
    """A steep curve: only what is almost certain is worth a place; the drafter goes on learning meanwhile."""
    steep = CostBudget(CostCurve((1, 2), (1.0, 1.5)))
    retriever = connected([[20, 21], [30]])
    one = Decoding(mixture(retriever, budget=steep, places=0, tables=False), [1, 2], 3)
    assert len(one.draft()) == 0
    free = Decoding(mixture(retriever, budget=CostBudget(CostCurve((1, 9), (1.0, 1.0))), places=0), [1, 2], 3)
    assert len(free.draft()) == 3


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"neighbors": -1}, "neighbors"),
        ({"sparse_neighbors": -1}, "sparse_neighbors"),
        ({"neighbors": 0, "sparse_neighbors": 0}, "neighbors and sparse_neighbors"),
        ({"nodes": 0}, "nodes"),
        *(({name: value}, name) for name in ("temperature", "match_temperature") for value in NO_TEMPERATURES),
    ],
)
def test_what_cannot_be_asked_for_is_refused(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named} must"):
        RetrievalConfig(**settings)


def test_a_negative_number_of_places_is_refused() -> None:
    with pytest.raises(ValueError, match="places must be 0 or more"):
        MixtureConfig(places=-1)
