"""Drafters and a retriever that propose what a test chooses: right, wrong, or hostile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from decoder_client.drafting.drafter import DraftRequest, Outcome
from decoder_client.reducer import KeyReducer, ReducerFit
from dresd.draft_tree import PAD, ROOT, DraftTree
from dresd.path_merging import merge_paths
from dresd.token_table import WIDTH, TokenTable
from dresd.tree_paths import tree_paths


class OracleDrafter:
    """Knows the answers and proposes them with errors: each token of a path is right with a given probability.

    At 0 it draws random tokens, at 1 it repeats the answer; in between, paths leave the answer and may return to it.
    """

    def __init__(
        self, *texts: Sequence[int], vocab_size: int, right: float | Sequence[float], paths: int = 6, seed: int = 0
    ) -> None:
        """Knows `texts`, prompts and answers together; `right` may be given for each of them."""
        rights = right if isinstance(right, Sequence) else [right] * len(texts)
        self._texts = [(list(text), one) for text, one in zip(texts, rights, strict=True)]
        self._vocab_size = vocab_size
        self._paths = paths
        self._random = np.random.default_rng(seed)

    def start(self, prompt: Sequence[int]) -> tuple[list[int], float]:
        return next((text, right) for text, right in self._texts if text[: len(prompt)] == list(prompt))

    def propose(self, requests: Sequence[DraftRequest[tuple[list[int], float]]]) -> list[DraftTree]:
        return [self._tree(request) for request in requests]

    def _tree(self, request: DraftRequest[tuple[list[int], float]]) -> DraftTree:
        text, right = request.session
        at = len(request.text)
        drawn = []
        for _ in range(self._paths):
            path = []
            for depth in range(self._random.integers(1, request.max_depth + 1)):
                known = at + depth < len(text) and self._random.random() < right
                path.append(text[at + depth] if known else int(self._random.integers(self._vocab_size)))
            drawn.append(path)
        return tree_of(drawn, self._random.random(len(drawn)).tolist(), max_nodes=request.max_nodes)

    def observe(self, session: tuple[list[int], float], outcome: Outcome) -> None:
        pass


class FixedDrafter:
    """Proposes the same paths for every sequence at every step, as deep and as many as asked for.

    Attributes:
        asked: each call's requests, their texts as they were.
        told: each outcome, with its text as it was.
    """

    def __init__(self, paths: Sequence[Sequence[int]] = ()) -> None:
        self._paths = paths
        self.asked: list[list[tuple[list[int], DraftRequest[int]]]] = []
        self.told: list[tuple[int, list[int], Outcome]] = []
        self._sessions = 0

    def start(self, _prompt: Sequence[int]) -> int:
        self._sessions += 1
        return self._sessions - 1

    def propose(self, requests: Sequence[DraftRequest[int]]) -> list[DraftTree]:
        self.asked.append([(list(request.text), request) for request in requests])
        return [
            tree_of([path[: request.max_depth] for path in self._paths], max_nodes=request.max_nodes)
            for request in requests
        ]

    def observe(self, session: int, outcome: Outcome) -> None:
        self.told.append((session, list(outcome.text), outcome))


def handshake_of(
    reducer: KeyReducer, *, token_table: TokenTable | None = None, left_context_length: int = 16
) -> SimpleNamespace:
    """What a connected client would say of the datastore."""
    return SimpleNamespace(
        reducer=reducer, token_table=token_table or TokenTable.empty(), left_context_length=left_context_length
    )


@dataclass
class FakeRetriever:
    """A retriever client that answers every query with the same paths, or not at all while `down`.

    Attributes:
        handshake: None for a client that was never connected.
        paths: of every answer.
        masses: dense and sparse, of each path.
        asked: calls so far, by the names of their arguments.
    """

    handshake: SimpleNamespace | None
    paths: Sequence[Sequence[int]] = ()
    masses: tuple[float, float] = (1.0, 0.0)
    down: bool = False
    asked: list[SimpleNamespace] = field(default_factory=list)

    def retrieve(
        self,
        keys: NDArray[np.float16],
        next_tokens: Sequence[int],
        *,
        left_contexts: NDArray[np.int32] | None,
        **settings: float,
    ) -> list[SimpleNamespace] | None:
        contexts = None if left_contexts is None else left_contexts.copy()
        self.asked.append(
            SimpleNamespace(keys=keys.copy(), next_tokens=list(next_tokens), left_contexts=contexts, **settings)
        )
        if self.down:
            return None
        return [SimpleNamespace(tree=self.answer(token)) for token in next_tokens]

    def answer(self, _next_token: int) -> DraftTree:
        """The tree for a query."""
        return two_sources(self.paths, [self.masses] * len(self.paths))


def paths_of(tree: DraftTree) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Weighted paths that `merge_paths` would merge into the tree again."""
    return tree_paths(tree.tokens, tree.parents, tree.masses)


def some_reducer(hidden_size: int, dims: int = 4, seed: int = 0) -> KeyReducer:
    fit = ReducerFit(hidden_size)
    fit.update(np.random.default_rng(seed).normal(size=(4 * hidden_size, hidden_size)))
    return fit.finish(dims)


def some_table(pairs: dict[tuple[int, int], dict[int, float]], singles: dict[int, dict[int, float]]) -> TokenTable:
    """A token table by what follows what, and how likely."""

    def rows(each: list[dict[int, float]]) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
        tokens, probabilities = np.full((len(each), WIDTH), PAD, np.int32), np.zeros((len(each), WIDTH), np.float16)
        for row, (own, likely) in enumerate(zip(tokens, each, strict=True)):
            own[: len(likely)] = list(likely)
            probabilities[row, : len(likely)] = list(likely.values())
        return tokens, probabilities

    single, pair = sorted(singles), sorted(pairs)
    return TokenTable(
        np.array(single, np.int32),
        *rows([singles[token] for token in single]),
        np.array(pair, np.int32).reshape(-1, 2),
        *rows([pairs[one] for one in pair]),
    )


def padded(paths: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    array = np.full((len(paths), max(map(len, paths), default=0)), PAD, np.int32)
    for row, path in zip(array, paths, strict=True):
        row[: len(path)] = path
    return array


def tree_of(
    paths: Sequence[Sequence[int]], weights: Sequence[float] | None = None, *, max_nodes: int = 10_000
) -> DraftTree:
    """A tree of one source that holds these paths."""
    if not paths:
        return DraftTree.empty()
    mass = np.ones(len(paths)) if weights is None else np.array(weights, np.float64)
    return _merged(paths, mass[:, None], max_nodes)


def two_sources(paths: Sequence[Sequence[int]], masses: Sequence[tuple[float, float]]) -> DraftTree:
    """A tree as a retriever answers, with the dense and the sparse mass of each path."""
    return _merged(paths, np.array(masses, np.float64).reshape(-1, 2), 10_000)


def _merged(paths: Sequence[Sequence[int]], weights: NDArray[np.float64], max_nodes: int) -> DraftTree:
    queries = np.zeros(len(paths), np.int64)
    return merge_paths(queries, padded(paths), weights, num_queries=1, max_nodes=max_nodes)[0]


def node_paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """The tokens from the root to each node."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return paths


def trees(vocab_size: int, *, max_paths: int = 8, max_depth: int = 6) -> st.SearchStrategy[DraftTree]:
    """Trees over tokens 0..vocab_size-1, the empty one included."""
    path = st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=max_depth)
    return st.lists(path, max_size=max_paths).map(tree_of)
