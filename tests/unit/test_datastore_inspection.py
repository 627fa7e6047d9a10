"""The numbers that describe a datastore."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from retriever_service.datastore import inspect
from tests.support.datastore import build_datastore


def test_the_numbers_are_those_of_the_entries(tmp_path):
    built = build_datastore(tmp_path / "store", num_partitions=4)
    counts = np.bincount(built.entries.next_tokens, minlength=50)
    found = inspect(built.path)
    assert found.num_entries == 500
    assert found.total_bytes == sum(file.stat().st_size for file in built.path.rglob("*") if file.is_file())
    assert sum(found.bytes_by_file.values()) == found.total_bytes
    assert found.recall == 1.0
    assert found.tokens.num_tokens == (counts > 0).sum()
    assert found.tokens.split_tokens == (counts > 500 / 4).sum() > 0
    assert found.tokens.max == counts.max()
    assert found.tokens.median == np.median(counts[counts > 0])
    assert [weight.entries for weight in found.tokens.heaviest] == sorted(counts.tolist(), reverse=True)[:10]
    assert all(counts[weight.token] == weight.entries for weight in found.tokens.heaviest)
    assert sum(partition.num_entries for partition in found.partitions) == 500
    assert sum(partition.share for partition in found.partitions) == pytest.approx(1.0)
    assert found.balance == max(partition.num_entries for partition in found.partitions) / 125
    assert sum(partition.bytes for partition in found.partitions) == pytest.approx(found.bytes_per_entry * 500)
    assert found.manifest["build_id"] == "test-build"


def test_it_becomes_json(tmp_path):
    inspection = inspect(build_datastore(tmp_path / "store").path)
    assert json.loads(json.dumps(asdict(inspection)))["tokens"]["max"] == inspection.tokens.max
