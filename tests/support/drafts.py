"""Drafters and a retriever that propose what a test chooses: right, wrong, or hostile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from decoder_client.drafting import DraftRequest, Proposal
from decoder_client.reducer import KeyReducer, ReducerFit
from dresd.draft_tree import PAD, DraftTree, merge_paths


class OracleDrafter:
    """Knows the answer and proposes it with errors: each token of a path is right with a given probability.

    At 0 it draws random tokens, at 1 it repeats the answer; in between, paths leave the answer and may return to it.
    """

    def __init__(self, text: Sequence[int], *, vocab_size: int, right: float, paths: int = 6, seed: int = 0) -> None:
        self._text = list(text)
        self._vocab_size = vocab_size
        self._right = right
        self._paths = paths
        self._random = np.random.default_rng(seed)

    def begin(self) -> None:
        pass

    def propose(self, request: DraftRequest) -> Proposal:
        at = len(request.tokens)
        paths = np.full((self._paths, request.max_depth), PAD, np.int32)
        for path in paths:
            for depth in range(self._random.integers(1, request.max_depth + 1)):
                known = at + depth < len(self._text)
                right = known and self._random.random() < self._right
                path[depth] = self._text[at + depth] if right else self._random.integers(self._vocab_size)
        return Proposal(paths, self._random.random(len(paths)))


class FixedDrafter:
    """Proposes the same paths at every step, however deep or many were asked for."""

    def __init__(self, paths: Sequence[Sequence[int]], weight: float = 1.0) -> None:
        self._paths = padded(paths)
        self._weight = weight
        self.requests: list[DraftRequest] = []

    def begin(self) -> None:
        self.requests.clear()

    def propose(self, request: DraftRequest) -> Proposal:
        self.requests.append(request)
        return Proposal(self._paths, np.full(len(self._paths), self._weight))


@dataclass
class FakeRetriever:
    """A connected retriever client that answers with the same paths, or not at all while `down`."""

    reducer: KeyReducer
    paths: Sequence[Sequence[int]] = ()
    total_mass: float = 1.0
    down: bool = False
    asked: list[tuple[NDArray[np.float16], list[int], dict[str, float]]] = field(default_factory=list)

    @property
    def handshake(self) -> SimpleNamespace:
        return SimpleNamespace(reducer=self.reducer)

    def retrieve(
        self, keys: NDArray[np.float16], next_tokens: Sequence[int], **limits: float
    ) -> list[SimpleNamespace] | None:
        self.asked.append((keys, list(next_tokens), limits))
        if self.down:
            return None
        return [SimpleNamespace(tree=tree_of(self.paths), total_mass=self.total_mass) for _ in next_tokens]


def some_reducer(hidden_size: int, dims: int = 4) -> KeyReducer:
    fit = ReducerFit(hidden_size)
    fit.update(np.random.default_rng(0).normal(size=(4 * hidden_size, hidden_size)))
    return fit.finish(dims)


def padded(paths: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    array = np.full((len(paths), max(map(len, paths), default=0)), PAD, np.int32)
    for row, path in zip(array, paths, strict=True):
        row[: len(path)] = path
    return array


def tree_of(paths: Sequence[Sequence[int]], weights: Sequence[float] | None = None) -> DraftTree:
    """A tree of one source that holds these paths."""
    if not paths:
        return DraftTree.empty()
    mass = np.ones(len(paths)) if weights is None else np.array(weights, np.float64)
    queries = np.zeros(len(paths), np.int64)
    return merge_paths(queries, padded(paths), mass[:, None], num_queries=1, max_nodes=10_000)[0]


def trees(vocab_size: int, *, max_paths: int = 8, max_depth: int = 6) -> st.SearchStrategy[DraftTree]:
    """Trees over tokens 0..vocab_size-1, the empty one included."""
    path = st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=max_depth)
    return st.lists(path, max_size=max_paths).map(tree_of)
