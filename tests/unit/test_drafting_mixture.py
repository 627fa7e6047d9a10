"""The mixture drafts from what every source holds, and learns whom to believe."""

from __future__ import annotations

import numpy as np
import pytest

from dresd.draft_tree import DraftTree
from tests.support.decoding import (
    HIDDEN,
    LARGE_VOCABULARY,
    Decoding,
    connected,
    mixture,
    nothing,
    probability,
)
from tests.support.drafts import FakeRetriever, handshake_of, node_paths, some_reducer, some_table, two_sources


def test_what_the_text_repeats_is_drafted_first() -> None:
    one = Decoding(mixture(), [*range(100, 120), 7, 11, 12, 13, 14, 15, 16, *range(50, 60), 5], 6)
    one.draft()
    one.hear([7, 11, 12])
    one.hear([12])
    one.hear([13])
    tree = one.draft(nodes=2)
    assert node_paths(tree) == [(14,), (14, 15)]


def test_longer_matches_are_believed_more() -> None:
    text = [1, 2, 3, 4, 5, 60, *range(200, 240), 5, 70, *range(300, 340), 1, 2, 3, 4]
    tree = Decoding(mixture(), text, 5).draft()
    assert probability(tree, 60) > probability(tree, 70) > 0.0


def test_a_loop_is_drafted_as_deep_as_asked() -> None:
    tree = Decoding(mixture(path=True), [1, 2, 3] * 6, 1).draft(depth=12)
    expected = [2, 3, 1] * 4
    assert tree.tokens.tolist()[:6] == expected[:6]
    assert tree.tokens.tolist() == expected[: len(tree)]


def test_what_the_target_said_before_is_drafted() -> None:
    def says(_previous: int, token: int) -> dict[int, float]:
        return {42: 0.8, 43: 0.15} if token == 4 else {1: 0.01, 2: 0.01}

    def at_the_same_place_again(one: Decoding) -> DraftTree:
        for token in (5, 3, 4):  # the target chose 5 after 3 4
            one.draft()
            one.hear([token])
        return one.draft()

    tree = at_the_same_place_again(Decoding(mixture(), [9, 3], 4, says=says))
    assert probability(tree, 42) > probability(tree, 43) > 0.0
    assert (tree.masses[tree.tokens == 42, 3] > 0.0).all()
    quiet = at_the_same_place_again(Decoding(mixture(tables=False), [9, 3], 4, says=says))
    assert probability(quiet, 42) == 0.0


def test_the_datastores_table_is_drafted_from() -> None:
    table = some_table({(2, 3): {30: 0.9, 31: 0.05}}, {3: {32: 0.9}, 30: {33: 0.9}})
    tree = Decoding(mixture(connected(token_table=table)), [1, 2], 3).draft()
    assert probability(tree, 30) > probability(tree, 31)
    assert probability(tree, 32) == 0.0  # the pair is known, so its last token alone does not count
    assert probability(tree, 30, 33) > 0.0
    assert np.allclose(tree.masses[:, :3], 0.0)
    other = Decoding(mixture(connected(token_table=table)), [1, 9], 3).draft()
    assert probability(other, 32) > 0.0
    assert len(Decoding(mixture(connected(token_table=table), tables=False), [1, 2], 3).draft()) == 0


@pytest.mark.parametrize(("masses", "source"), [((1.0, 0.0), 0), ((0.0, 1.0), 1)])
def test_a_node_says_where_it_comes_from(masses: tuple[float, float], source: int) -> None:
    tree = Decoding(mixture(connected([[20, 21]], masses=masses)), [1, 2], 3).draft()
    assert node_paths(tree) == [(20,), (20, 21)]
    assert (tree.masses[:, source] > 0.0).all()
    assert tree.masses.sum() == tree.masses[:, source].sum()


def test_a_heavier_path_is_likelier() -> None:
    class Two(FakeRetriever):
        def answer(self, _next_token: int) -> DraftTree:
            return two_sources([[20, 21], [30, 31]], [(5.0, 0.0), (1.0, 0.0)])

    tree = Decoding(mixture(Two(handshake_of(some_reducer(HIDDEN)))), [1, 2], 3).draft()
    assert probability(tree, 20) > probability(tree, 30) > 0.0
    assert probability(tree, 20, 21) > probability(tree, 30, 31) > 0.0


def unheard(random: np.random.Generator) -> int:
    """A token that the text has, in all likelihood, not had."""
    return int(random.integers(1000, LARGE_VOCABULARY))


@pytest.mark.parametrize("masses", [(1.0, 0.0), (0.0, 1.0)])
def test_a_retriever_is_believed_by_what_came_of_it(masses: tuple[float, float]) -> None:
    """One that is always right more and more, one that is always wrong less, beside a rival that is the opposite."""

    def belief(right: bool) -> tuple[float, float]:
        random = np.random.default_rng(0)
        retriever = connected([[20, 21], [30]], masses=masses)
        one = Decoding(mixture(retriever), [unheard(random)], 3)
        first = probability(one.draft(), 20)
        for _ in range(60):
            one.hear([20, 21, unheard(random)] if right else [unheard(random)])
            last = probability(one.draft(), 20)
        return first, last

    (first, believed), (again, doubted) = belief(right=True), belief(right=False)
    assert first == again > 0.0
    assert doubted < first < believed


def test_the_source_that_is_right_gains_on_the_one_that_is_wrong() -> None:
    class Divided(FakeRetriever):
        def answer(self, _next_token: int) -> DraftTree:
            return two_sources([[20], [30]], [(1.0, 0.0), (0.0, 1.0)])

    def odds(right: int) -> list[float]:
        random = np.random.default_rng(0)
        one = Decoding(mixture(Divided(handshake_of(some_reducer(HIDDEN)))), [unheard(random)], 3)
        found = []
        for _ in range(60):
            tree = one.draft()
            found.append(probability(tree, 20) / probability(tree, 30))
            one.hear([right, unheard(random)])
        return found

    assert odds(20)[-1] > odds(20)[0] == odds(30)[0] > odds(30)[-1]


@pytest.mark.parametrize("right", [1.0, 0.5, 0.1])
def test_what_is_expected_of_drafts_follows_what_comes_of_them(right: float) -> None:
    """Whatever the sources weigh: in the long run as many nodes are expected as are accepted."""
    random = np.random.default_rng(0)
    one = Decoding(mixture(connected([[20], [30]]), places=0, tables=False), [unheard(random)], 3)
    expected, accepted = [], []
    for _ in range(1500):
        tree = one.draft()
        expected.append(float(tree.masses.sum()))
        accepted.append(random.random() < right)
        one.hear([20, unheard(random)] if accepted[-1] else [unheard(random)])
    assert np.mean(expected[-500:]) == pytest.approx(np.mean(accepted[-500:]), abs=0.15)


def test_what_is_learned_serves_other_sequences() -> None:
    retriever = connected([[20, 21], [30]])
    drafter = mixture(retriever)
    before = probability(Decoding(drafter, [1], 2).draft(), 20)
    random = np.random.default_rng(0)
    one = Decoding(drafter, [1], 2)
    for _ in range(40):
        one.draft()
        one.hear([unheard(random)])
    assert probability(Decoding(drafter, [1], 2).draft(), 20) < before


def test_the_first_token_of_all_has_no_place_and_no_pair() -> None:
    """A prompt of one token."""
    said: list[tuple[int, int]] = []

    def says(previous: int, token: int) -> dict[int, float]:
        said.append((previous, token))
        return nothing(previous, token)

    one = Decoding(mixture(connected([[20]])), [1], 2, says=says)
    assert node_paths(one.draft()) == [(20,)]
    assert said == [(-1, 1)]
