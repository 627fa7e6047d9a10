"""What drafting remembers of the target's own words, and of the retriever's answers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.drafting.drafter import LikelyTokens
from decoder_client.drafting.fresh import FreshTable
from decoder_client.drafting.kernel import pair_place
from decoder_client.drafting.retrieved import RetrievedPaths
from dresd.draft_tree import PAD, ROOT, DraftTree
from tests.support.drafts import two_sources

WIDTH = 3

# What the target said, by what it stood after; sometimes many at once, so that tables grow.
contexts = st.tuples(st.integers(-1, 5), st.integers(0, 5))
said = st.lists(st.lists(st.tuples(contexts, st.integers(0, 10**6)), min_size=1, max_size=40), max_size=8)


def likely(rows: list[tuple[tuple[int, int], int]]) -> LikelyTokens:
    """Distinct tokens and probabilities for each context, by a number."""
    numbers = np.array([number for _, number in rows])
    tokens = (numbers[:, None] + np.arange(WIDTH)) % 50_000
    probabilities = np.array([0.5, 0.25, 0.1], np.float32) * (1 + numbers[:, None] % 7) / 7
    return LikelyTokens(np.array([context for context, _ in rows]), tokens, probabilities.astype(np.float32))


@given(said, st.lists(contexts, min_size=1, max_size=20))
def test_the_latest_words_after_a_pair_are_remembered(
    batches: list[list[tuple[tuple[int, int], int]]], asked: list[tuple[int, int]]
) -> None:
    table, latest = FreshTable(), {}
    for batch in batches:
        table.add(likely(batch))
        latest.update(dict(batch))
    for pair in [*asked, *latest]:
        found = remembered(table, pair)
        if pair not in latest:
            assert found is None
            continue
        assert found is not None
        expected = likely([(pair, latest[pair])])
        assert found[0].tolist() == expected.next_tokens[0].tolist()
        np.testing.assert_allclose(found[1], expected.probabilities[0], rtol=1e-6)


def remembered(table: FreshTable, pair: tuple[int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    keys, tokens, probabilities = table.arrays
    key = (pair[0] << 32) | pair[1]
    place = pair_place(keys, key)
    return (tokens[place], probabilities[place]) if keys[place] == key else None


def test_large_vocabularies_are_told_apart() -> None:
    table = FreshTable()
    rows = [((-1, 0), 1), ((0, 2**31 - 1), 2), ((2**31 - 1, 0), 3), ((1, 0), 4)]
    table.add(likely(rows))
    for pair, number in rows:
        found = remembered(table, pair)
        assert found is not None
        assert found[0][0] == number


paths_of = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=8)
masses_of = st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 10.0))


def masses_by_path(tree: DraftTree) -> dict[tuple[int, ...], list[float]]:
    names: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        names.append((*(names[parent] if parent != ROOT else ()), token))
    return dict(zip(names, tree.masses.tolist(), strict=True))


@given(paths_of, st.lists(st.integers(0, 2), min_size=1, max_size=7), st.data())
def test_following_tokens_is_walking_down_the_tree(
    paths: list[list[int]], tokens: list[int], data: st.DataObject
) -> None:
    weights = data.draw(st.lists(masses_of, min_size=len(paths), max_size=len(paths)))
    tree = two_sources(paths, weights)
    whole = masses_by_path(tree)
    cut = data.draw(st.integers(0, len(tokens)))
    left: RetrievedPaths | None = RetrievedPaths.of(tree)
    for part in (tokens[:cut], tokens[cut:]):  # at once or in two steps
        if part and left is not None:
            left = left.after(part)
    below = {path[len(tokens) :]: mass for path, mass in whole.items() if path[: len(tokens)] == tuple(tokens)}
    below.pop((), None)
    if left is None:
        assert below == {}
        return
    found: dict[tuple[int, ...], list[float]] = {}
    for path, mass in zip(left.paths.tolist(), left.masses.tolist(), strict=True):
        end = path.index(PAD) if PAD in path else len(path)
        assert end > 0
        assert all(token == PAD for token in path[end:])
        for length in range(1, end + 1):
            held = found.setdefault(tuple(path[:length]), [0.0, 0.0])
            found[tuple(path[:length])] = [one + more for one, more in zip(held, mass, strict=True)]
    assert found.keys() == below.keys()
    for path, mass in below.items():
        np.testing.assert_allclose(found[path], mass, rtol=1e-6, atol=1e-9)


def test_an_empty_answer_foretells_nothing() -> None:
    for empty in (DraftTree.empty(), DraftTree.empty(2)):
        assert len(RetrievedPaths.of(empty).paths) == 0
        assert RetrievedPaths.of(empty).after([1]) is None
