"""The long programs that look for trouble, short."""

from __future__ import annotations

from benchmarks import fuzz, soak


def test_a_short_soak_finds_nothing_wrong():
    assert soak.run(minutes=1.0, load=0.1, minute_s=4.0) == []


def test_a_short_fuzz_finds_nothing_wrong():
    assert fuzz.run(seconds=2.0, seed=1) == []
