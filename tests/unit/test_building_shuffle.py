"""Shuffling: every entry comes to its token's partition, once, in the order of the corpus, whoever does the work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.building.jobs import make_embedded_job, planned
from benchmarks.synthetic import Generator
from dresd.routing import RoutingTable
from retriever_service.building.blocks import DamagedBlockError
from retriever_service.building.shuffle import Shuffler, entries_of, group_path
from retriever_service.datastore import EntryBatch, assign_tokens
from tests.support.interrupting import flip_a_byte

ENTRIES, PARTITIONS, WIDTH = 4000, 3, 5


def shuffled(folder: Path) -> tuple[Shuffler, RoutingTable]:
    make_embedded_job(folder, ENTRIES)
    plan = planned(folder)
    routing = assign_tokens(plan.token_counts(), PARTITIONS)
    out = folder / "shuffled"
    out.mkdir()
    return Shuffler(plan, folder / "embedded", folder / "fit" / "reducer.block", out, routing, WIDTH), routing


def test_every_entry_comes_to_its_partition_in_order(tmp_path: Path) -> None:
    shuffler, routing = shuffled(tmp_path)
    groups = shuffler.planned.totals().groups
    assert sum(shuffler.shuffle(group) for group in range(groups)) == ENTRIES
    expected = EntryBatch.concatenate(list(Generator().entries(ENTRIES)))
    keys = expected.keys.astype(np.float16).astype(np.float32)
    place_of = {key.tobytes(): place for place, key in enumerate(keys)}
    assert len(place_of) == ENTRIES
    left = np.arange(ENTRIES)
    for partition in range(PARTITIONS):
        found = EntryBatch.concatenate(list(entries_of(shuffler.out, groups, partition)))
        assert abs(len(found) - ENTRIES / PARTITIONS) < ENTRIES / 20
        # Keys say which entries these are.
        places = np.array([place_of[key.tobytes()] for key in found.keys])
        assert (np.diff(places) > 0).all()
        assert found.next_tokens.tolist() == expected.next_tokens[places].tolist()
        for token in np.unique(found.next_tokens).tolist():
            row = int(np.searchsorted(routing.tokens, token))
            assert partition in routing.partitions[routing.offsets[row] : routing.offsets[row + 1]]
        left = np.setdiff1d(left, places)
    assert len(left) == 0


def test_a_group_shuffled_again_is_the_same_and_a_damaged_one_is_found(tmp_path: Path) -> None:
    shuffler, _ = shuffled(tmp_path)
    shuffler.shuffle(0)
    path = group_path(shuffler.out, 0)
    first = path.read_bytes()
    shuffler.shuffle(0)
    assert path.read_bytes() == first
    flip_a_byte(path)
    with pytest.raises(DamagedBlockError):
        [list(entries_of(shuffler.out, 1, partition)) for partition in range(PARTITIONS)]
