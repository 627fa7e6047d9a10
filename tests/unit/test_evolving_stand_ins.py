"""Stand-ins are the best that there are: found in the order of continuations, they are those of comparing all pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from retriever_service.datastore import Datastore, entries_at
from retriever_service.evolving.redundancy import StandIns, StandInSearch
from tests.support.datastore import build_datastore, random_entries

PAD = -1


def scores_of_all_pairs(store: Datastore, kept: NDArray[np.bool_], similarity: float) -> NDArray[np.float64]:
    """float64 [n, n]: what each entry is worth as a stand-in of each other one, and 1 more for near-duplicates."""
    entries = entries_at(store, np.arange(store.num_entries))
    paths = entries.continuations
    agree = np.logical_and.accumulate((paths[:, None] == paths) | (paths[:, None] == PAD), axis=2)
    reached = np.where(paths == PAD, 0.0, 0.6 ** np.arange(paths.shape[1]))
    whole = reached.sum(axis=1, keepdims=True)
    alike = np.where(whole > 0, (agree * reached[:, None]).sum(axis=2) / np.maximum(whole, 1e-9), 1.0)
    cosines = np.minimum(entries.keys @ entries.keys.T, 1.0).astype(np.float64)
    duplicates = (paths[:, None] == paths).all(axis=2) & (cosines >= similarity)
    able = (entries.next_tokens[:, None] == entries.next_tokens) & kept & ~np.eye(len(kept), dtype=np.bool_)
    return np.where(able, alike * np.exp((cosines - 1.0) / 0.1) + duplicates, 0.0)


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(1, 200),
    parts=st.integers(1, 3),
    share=st.floats(0.0, 1.0),
    similarity=st.floats(0.5, 0.99),
    codec=st.sampled_from(["flat", "sq8"]),
    seed=st.integers(0, 99),
)
def test_they_are_the_best_of_all_pairs(tmp_path_factory, size, parts, share, similarity, codec, seed):
    folder = tmp_path_factory.mktemp("stand-ins") / "store"
    built = build_datastore(folder, random_entries(size, seed=seed), num_partitions=parts, codec=codec)
    store = built.open()
    random = np.random.default_rng(seed)
    kept, asked = random.random(size) < share, random.random(size) < 0.8
    found = StandIns.none(size)
    StandInSearch(store, similarity=similarity).update(found, kept, asked)
    scores = scores_of_all_pairs(store, kept, similarity)
    rows = np.arange(size)
    expected = np.sort(scores, axis=1)[:, ::-1][:, :2] if size > 1 else np.zeros((size, 2))
    # Of equal ones, any will do; nobody was asked about the others.
    for nth in (0, 1):
        chosen = found.entries[:, nth]
        got = np.where(chosen >= 0, scores[rows, chosen], 0.0)
        np.testing.assert_allclose(got[asked], expected[asked, nth], atol=1e-5)
        worths = found.worths[:, nth]
        assert (np.minimum(np.abs(worths - got), np.abs(worths + 1.0 - got))[asked] < 1e-5).all()
    assert (found.entries[~asked] == -1).all()
    assert (found.near_duplicates[asked] == (expected[asked, 0] > 1.0 + 1e-6)).all()
