"""The mixture's trees hold together, whatever the sources say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dresd.draft_tree import ROOT, DraftTree
from tests.support.decoding import HIDDEN, Decoding, connected, mixture, probability
from tests.support.drafts import FakeRetriever, handshake_of, node_paths, some_reducer, some_table, two_sources

VOCAB = 8
SOURCES = 4  # dense, sparse, context, tables


def check_tree(tree: DraftTree, *, nodes: int, depth: int, path: bool) -> None:
    probabilities = tree.masses.sum(axis=1)
    assert len(tree) <= nodes
    assert tree.masses.shape == (len(tree), SOURCES) or len(tree) == 0
    assert np.isfinite(tree.masses).all()
    assert (tree.masses >= 0.0).all()
    assert ((tree.tokens >= 0) & (tree.tokens < VOCAB)).all()
    assert (tree.parents < np.arange(len(tree))).all()
    assert (tree.parents >= ROOT).all()
    assert tree.depths().max(initial=0) <= depth
    edges = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
    assert len(set(edges)) == len(edges)
    of_parent = np.append(probabilities, 1.0)[tree.parents]  # ROOT is -1, the last
    assert (probabilities <= of_parent * (1 + 1e-9)).all()
    for parent in {*tree.parents.tolist()}:
        whole = probabilities[parent] if parent != ROOT else 1.0
        assert probabilities[tree.parents == parent].sum() <= whole * (1 + 1e-6)
    assert (np.diff(probabilities) <= 1e-12).all()
    if path:
        assert tree.parents.tolist() == list(range(-1, len(tree) - 1))


tokens = st.integers(0, VOCAB - 1)
any_tokens = st.integers(0, VOCAB + 3)
# From nothing to what float32 holds, which is what a message can carry.
masses = st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 50.0, 1e6, 3e38])
tables = st.dictionaries(tokens, st.dictionaries(any_tokens, st.sampled_from([0.0, 0.01, 0.5, 1.0]), max_size=8))


@st.composite
def retrievers(draw: st.DrawFn) -> FakeRetriever | None:
    """None, or one whose answers, builds and health change from call to call."""
    if draw(st.booleans()):
        return None
    answers = draw(
        st.lists(
            st.lists(st.tuples(st.lists(any_tokens, min_size=1, max_size=5), st.tuples(masses, masses)), max_size=6),
            min_size=1,
            max_size=4,
        )
    )
    fates = draw(st.lists(st.sampled_from(["up", "up", "up", "down", "rebuilt"]), min_size=1, max_size=5))
    singles = draw(tables)
    pairs = draw(st.dictionaries(st.tuples(tokens, tokens), st.dictionaries(any_tokens, st.just(1.0), max_size=8)))

    class Changing(FakeRetriever):
        def retrieve(self, *arguments: object, **options: object) -> object:
            fate = fates[len(self.asked) % len(fates)]
            self.down = fate == "down"
            answer = super().retrieve(*arguments, **options)
            if fate == "rebuilt":
                dims = 2 + len(self.asked) % 3
                self.handshake = handshake_of(some_reducer(HIDDEN, dims=dims), token_table=some_table({}, singles))
            return answer

        def answer(self, _next_token: int) -> DraftTree:
            paths = answers[len(self.asked) % len(answers)]
            return two_sources([path for path, _ in paths], [mass for _, mass in paths])

    table = some_table(pairs, singles)
    return Changing(handshake_of(some_reducer(HIDDEN), token_table=table, left_context_length=draw(st.integers(0, 20))))


class Whims:
    """A target that says different things of the same tokens, within its vocabulary."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, _previous: int, _token: int) -> dict[int, float]:
        shares = np.sort(self._random.dirichlet([0.3] * 4))[::-1]
        return dict(zip(self._random.permutation(VOCAB)[:4].tolist(), shares.tolist(), strict=True))


steps = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 12), st.lists(tokens, min_size=1, max_size=8)), min_size=1, max_size=6
)


@pytest.mark.filterwarnings("error")
@settings(max_examples=150)
@given(
    retrievers(),
    st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=20), tokens), min_size=1, max_size=3),
    steps,
    st.booleans(),
    st.sampled_from([0, 1, 24]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_trees_hold_together_whatever_the_sources_say(
    retriever: FakeRetriever | None,
    prompts: list[tuple[list[int], int]],
    passes: list[tuple[int, int, list[int]]],
    path: bool,
    places: int,
    with_tables: bool,
    seed: int,
) -> None:
    drafter = mixture(retriever, vocab_size=VOCAB, path=path, places=places, tables=with_tables)
    sequences = [
        Decoding(drafter, prompt, first, hidden_size=HIDDEN, says=Whims(seed), seed=seed) for prompt, first in prompts
    ]
    for nodes, depth, answer in passes:
        drafts = drafter.propose([one.request(nodes=nodes, depth=depth) for one in sequences])
        for one, tree in zip(sequences, drafts, strict=True):
            check_tree(tree, nodes=nodes, depth=depth, path=path)
            one.tree = tree
            one.hear(answer)


@given(
    st.lists(st.lists(any_tokens, min_size=1, max_size=5), max_size=8),
    st.lists(tokens, min_size=1, max_size=25),
    tokens,
    st.booleans(),
    st.integers(1, 30),
)
def test_every_path_drafted_is_one_that_a_source_holds(
    paths: list[list[int]], prompt: list[int], first: int, with_text: bool, nodes: int
) -> None:
    text, depth = [*prompt, first], 6
    drafter = mixture(connected(paths), vocab_size=VOCAB, places=24 if with_text else 0, tables=False)
    tree = Decoding(drafter, prompt, first).draft(nodes=nodes, depth=depth)
    held = [path[:depth] for path in paths]
    if with_text:
        for place, token in enumerate(prompt):
            if token == first:
                # A text that is at its end goes on from the place as if it repeated itself.
                held.append([*text[place + 1 :], *(text[place + 1 :] * depth)][:depth])
    usable = set()
    for path in held:
        end = next((at for at, token in enumerate(path) if token >= VOCAB), len(path))
        usable |= {tuple(path[:length]) for length in range(1, end + 1)}
    assert set(node_paths(tree)) <= usable


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("path", [False, True])
def test_one_hostile_answer_does_not_spoil_those_that_follow(path: bool) -> None:
    """Masses at the limits of their type must not leave a weight that is no number."""
    retriever = connected([[1, 2], [3]], masses=(3e38, 3e38))
    drafter = mixture(retriever, places=0, tables=False, path=path)
    one = Decoding(drafter, [5, 6], 7)
    for _ in range(30):
        one.draft()
        one.hear([9])
    retriever.masses = (1.0, 1.0)
    for _ in range(30):
        one.draft()
        one.hear([1, 2, 4])
    assert probability(one.draft(), 1, 2) > 0.0
