"""What does not pay is done less and less, but never given up."""

from __future__ import annotations

from itertools import pairwise

from decoder_client.drafting.gate import Gate


def openings(gate: Gate, gains: list[float], cost: float) -> list[int]:
    """The steps at which the gate opened, when doing it at step i gains gains[i]."""
    opened = []
    for step, gain in enumerate(gains):
        if gate.opens():
            opened.append(step)
            gate.record(gain, cost)
    return opened


def test_what_pays_is_done_at_every_step() -> None:
    assert openings(Gate(), [2.0] * 200, 1.0) == list(range(200))


def test_what_pays_now_and_then_but_on_average_is_done_at_every_step() -> None:
    assert openings(Gate(), [0.0, 0.0, 0.0, 8.0] * 50, 1.0) == list(range(200))


def test_what_does_not_pay_is_tried_at_long_intervals() -> None:
    opened = openings(Gate(), [0.0] * 5000, 1.0)
    assert len(opened) < 120
    gaps = [later - sooner for sooner, later in pairwise(opened)]
    assert gaps == sorted(gaps)
    assert max(gaps) <= 64


def test_what_pays_again_is_done_again() -> None:
    gate = Gate()
    openings(gate, [0.0] * 2000, 1.0)
    opened = openings(gate, [5.0] * 2000, 1.0)
    assert opened[-500:] == list(range(1500, 2000))


def test_something_new_gets_a_chance_at_once() -> None:
    gate = Gate()
    openings(gate, [0.0] * 2000, 1.0)
    gate.begin()
    assert gate.opens()
