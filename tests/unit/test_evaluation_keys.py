"""All keys of a datastore, and the neighbours that a search over all of them finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from decoder_client.evaluation.keys import all_keys, exact_search, scann_search
from tests.support.datastore import build_datastore, random_entries


@pytest.mark.parametrize(("codec", "partitions", "tolerance"), [("flat", 1, 1e-6), ("flat", 3, 1e-6), ("sq8", 2, 0.03)])
def test_keys_come_in_the_order_of_entry_ids(tmp_path: Path, codec: str, partitions: int, tolerance: float) -> None:
    entries = random_entries(400, seed=1)
    datastore = build_datastore(tmp_path / "store", entries, codec=codec, num_partitions=partitions).open()
    keys = all_keys(datastore)
    assert keys.shape == (400, 8)
    assert np.linalg.norm(keys, axis=1) == pytest.approx(np.ones(400), abs=1e-5)
    stored = datastore.entries(np.arange(400))
    # Next token, continuation and left context tell nearly every entry; each must come back with its own key.
    rows = {
        (int(token), *path.tolist(), *left.tolist()): key
        for token, path, left, key in zip(
            entries.next_tokens, entries.continuations, entries.left_contexts, entries.keys, strict=True
        )
    }
    whole = zip(stored.next_tokens, stored.continuations, stored.left_contexts, keys, strict=True)
    off = [np.abs(rows[(int(token), *path.tolist(), *left.tolist())] - key).max() for token, path, left, key in whole]
    assert np.mean(np.array(off) <= tolerance) > 0.95


def test_keys_without_direction_stay_so(tmp_path: Path) -> None:
    """What a code makes of a key of zeros is noise, and no direction."""
    entries = random_entries(400, seed=1)
    entries.keys[:40] = 0.0
    keys = all_keys(build_datastore(tmp_path / "store", entries, codec="sq8").open())
    assert (np.linalg.norm(keys, axis=1) == 0.0).sum() == 40


def test_exact_search_finds_the_nearest_of_all() -> None:
    random = np.random.default_rng(0)
    keys = random.normal(size=(300, 8)).astype(np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    search = exact_search(keys, 50)
    for query in keys[:20] + 0.1 * random.normal(size=(20, 8)).astype(np.float32):
        assert search(query).tolist() == np.argsort(-(keys @ query))[:50].tolist()
    assert len(exact_search(keys[:7], 50)(keys[0])) == 7


def test_scann_finds_most_of_them() -> None:
    pytest.importorskip("scann", reason='pip install "dresd[scann]" for this one')
    random = np.random.default_rng(0)
    centres = random.normal(size=(50, 16))
    keys = (centres[random.integers(50, size=5000)] + 0.4 * random.normal(size=(5000, 16))).astype(np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    exact, approximate = exact_search(keys, 50), scann_search(keys, 50)
    shared = [len(set(exact(key).tolist()) & set(approximate(key).tolist())) for key in keys[:40]]
    assert np.mean(shared) > 35
