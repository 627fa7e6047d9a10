"""Cost curves, and how many nodes pay for themselves on them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.drafting import CostBudget, CostCurve, FixedBudget

FLAT = CostCurve((1, 100), (1.0, 1.000001))
STEEP = CostCurve((1, 2), (1.0, 2.0))


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    tokens = draw(st.sets(st.integers(2, 300), min_size=1, max_size=12).map(sorted))
    times = draw(st.lists(st.floats(1e-6, 1e3), min_size=len(tokens) + 1, max_size=len(tokens) + 1))
    return CostCurve((1, *tokens), tuple(times))


@given(curves())
def test_a_curve_is_read_as_it_was_written(curve: CostCurve) -> None:
    assert CostCurve.from_json(curve.to_json()) == curve


@given(curves(), st.integers(1, 400))
def test_between_measured_sizes_times_lie_on_a_line(curve: CostCurve, tokens: int) -> None:
    [time] = curve.seconds([tokens])
    known = dict(zip(curve.tokens, curve.pass_seconds, strict=True))
    if tokens in known:
        assert time == known[tokens]
    elif tokens > curve.tokens[-1]:
        slope = max(0.0, (curve.pass_seconds[-1] - curve.pass_seconds[-2]) / (curve.tokens[-1] - curve.tokens[-2]))
        assert time == pytest.approx(curve.pass_seconds[-1] + slope * (tokens - curve.tokens[-1]))
    else:
        low = max(one for one in curve.tokens if one < tokens)
        high = min(one for one in curve.tokens if one > tokens)
        part = (tokens - low) / (high - low)
        assert time == pytest.approx(known[low] + part * (known[high] - known[low]))
    assert time > 0.0


NO_CURVES = {
    "nothing": "",
    "no JSON": "{",
    "a list": "[1, 2]",
    "a number": "7",
    "null": "null",
    "a text": '"tokens"',
    "no tokens": '{"pass_seconds": [1.0, 2.0]}',
    "no times": '{"tokens": [1, 2]}',
    "tokens: a text": '{"tokens": "12", "pass_seconds": [1.0, 2.0]}',
    "tokens: an object": '{"tokens": {"1": 2}, "pass_seconds": [1.0]}',
    "tokens: null": '{"tokens": null, "pass_seconds": [1.0, 2.0]}',
    "tokens: texts": '{"tokens": ["one", "two"], "pass_seconds": [1.0, 2.0]}',
    "tokens: nulls": '{"tokens": [1, null], "pass_seconds": [1.0, 2.0]}',
    "tokens: lists": '{"tokens": [[1], [2]], "pass_seconds": [1.0, 2.0]}',
    "tokens: none": '{"tokens": [], "pass_seconds": []}',
    "tokens: one": '{"tokens": [1], "pass_seconds": [1.0]}',
    "tokens: not from 1": '{"tokens": [2, 3], "pass_seconds": [1.0, 2.0]}',
    "tokens: not ascending": '{"tokens": [1, 3, 2], "pass_seconds": [1.0, 2.0, 3.0]}',
    "tokens: repeated": '{"tokens": [1, 1], "pass_seconds": [1.0, 2.0]}',
    "tokens: too large a number": '{"tokens": [1, 1' + "0" * 400 + '], "pass_seconds": [1.0, 2.0]}',
    "tokens: infinite": '{"tokens": [1, Infinity], "pass_seconds": [1.0, 2.0]}',
    "tokens: NaN": '{"tokens": [1, NaN], "pass_seconds": [1.0, 2.0]}',
    "times: a text": '{"tokens": [1, 2], "pass_seconds": "12"}',
    "times: texts": '{"tokens": [1, 2], "pass_seconds": ["fast", "slow"]}',
    "times: nulls": '{"tokens": [1, 2], "pass_seconds": [1.0, null]}',
    "times: too few": '{"tokens": [1, 2], "pass_seconds": [1.0]}',
    "times: too many": '{"tokens": [1, 2], "pass_seconds": [1.0, 2.0, 3.0]}',
    "times: zero": '{"tokens": [1, 2], "pass_seconds": [0.0, 2.0]}',
    "times: negative": '{"tokens": [1, 2], "pass_seconds": [1.0, -2.0]}',
    "times: NaN": '{"tokens": [1, 2], "pass_seconds": [1.0, NaN]}',
    "times: infinite": '{"tokens": [1, 2], "pass_seconds": [1.0, Infinity]}',
    "times: too large a number": '{"tokens": [1, 2], "pass_seconds": [1.0, 1' + "0" * 400 + "]}",
    "nested without end": "[" * 100_000,
}


@pytest.mark.parametrize("kind", NO_CURVES)
def test_what_is_no_curve_is_a_value_error(kind: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        CostCurve.from_json(NO_CURVES[kind])


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner))


@given(values | st.fixed_dictionaries({"tokens": values, "pass_seconds": values}))
def test_whatever_a_file_holds_it_is_a_curve_or_a_value_error(value: object) -> None:
    try:
        curve = CostCurve.from_json(json.dumps(value))
    except ValueError:
        return
    assert (curve.seconds([1, 2, 1000]) > 0.0).all()


probabilities = st.lists(st.floats(0.0, 1.0), max_size=20).map(lambda each: np.array(sorted(each, reverse=True)))
batches = st.lists(probabilities, min_size=1, max_size=5)


@given(batches)
def test_a_fixed_budget_takes_what_there_is(batch: list[np.ndarray]) -> None:
    budget = FixedBudget()
    budget.observe(3, 0.0)
    assert budget.choose(batch) == list(map(len, batch))


@given(curves(), st.lists(batches, min_size=1, max_size=4), st.integers(1, 10))
def test_a_cost_budget_takes_no_more_than_there_is(
    curve: CostCurve, steps: list[list[np.ndarray]], tokens: int
) -> None:
    budget = CostBudget(curve)
    for batch in steps:
        counts = budget.choose(batch)
        assert all(0 <= count <= len(one) for count, one in zip(counts, batch, strict=True))
        # All sequences share a pass as wide as the largest draft, so none is cut further than that.
        assert all(count in (len(one), max(counts)) for count, one in zip(counts, batch, strict=True))
        for _ in batch:
            budget.observe(tokens, 0.0)


def test_what_costs_nothing_is_taken_and_what_costs_a_pass_is_not() -> None:
    likely = np.array([0.9, 0.5, 0.2, 0.01])
    assert CostBudget(FLAT).choose([likely]) == [4]
    assert CostBudget(STEEP).choose([likely]) == [0]
    assert CostBudget(FLAT).choose([np.zeros(4)]) == [0]
    assert CostBudget(FLAT).choose([np.full(4, 1e-12)]) == [0]
    assert CostBudget(STEEP).choose([np.zeros(0)]) == [0]


@given(st.floats(0.001, 0.9), st.integers(1, 30))
def test_a_node_is_worth_its_place_while_it_gains_faster_than_tokens_come_anyway(price: float, count: int) -> None:
    """One token a unit of time and `price` a node: nodes above the price are taken, the rest is not."""
    curve = CostCurve((1, 2), (1.0, 1.0 + price))
    falling = np.linspace(1.0, 0.0, count)
    [chosen] = CostBudget(curve).choose([falling])
    assert (falling > price * (1 + 1e-9)).sum() <= chosen <= (falling > price * (1 - 1e-9)).sum()


def test_a_decoder_that_gains_much_becomes_choosy() -> None:
    """The faster tokens come anyway, the more a slow pass costs."""
    curve = CostCurve((1, 65), (1.0, 3.0))
    some = np.full(16, 0.05)
    budget = CostBudget(curve)
    assert budget.choose([some]) == [16]
    for _ in range(100):
        budget.choose([np.full(4, 0.99)])
        budget.observe(5, 0.0)
    assert budget.choose([some]) == [0]
    for _ in range(1000):
        budget.choose([np.zeros(0)])
        budget.observe(1, 0.0)
    assert budget.choose([some]) == [16]


def test_sequences_share_the_pass() -> None:
    """One that gains pays for the others' places, too: a pass is as wide as its largest draft."""
    curve = CostCurve((1, 2), (1.0, 1.2))
    gains, idle = np.full(8, 0.5), np.zeros(0)
    assert CostBudget(curve).choose([gains]) == [8]
    # Four times as many tokens in the pass for the same gain.
    assert CostBudget(curve).choose([gains, idle, idle, idle]) == [0, 0, 0, 0]
    assert CostBudget(curve).choose([gains, gains[:3], gains, gains]) == [8, 3, 8, 8]


def test_the_rate_of_a_batch_counts_each_sequences_share_of_the_time() -> None:
    """A batch on a flat curve is that many times as fast; sequences alone are not."""
    curve = CostCurve((1, 65), (1.0, 1.64))
    some = np.full(8, 0.02)
    alone, together = CostBudget(curve), CostBudget(curve)
    for _ in range(300):
        alone.choose([some])
        alone.observe(1, 0.0)
        together.choose([some] * 4)
        for _ in range(4):
            together.observe(1, 0.0)
    assert alone.choose([some]) == [8]
    assert together.choose([some]) == [0]


def test_a_fixed_budget_opens_at_every_step_and_knows_no_time() -> None:
    budget = FixedBudget()
    assert [budget.opens() for _ in range(99)] == [True] * 99
    assert budget.token_s is None


@pytest.mark.parametrize("sequences", [1, 4, 16])
def test_a_budget_closes_while_drafts_do_not_pay_and_looks_again_at_times(sequences: int) -> None:
    """At every step as long as they pay; else first at every 2nd, then at every 4th, ..., however large the batch."""
    budget = CostBudget(CostCurve((1, 100), (1.0, 1.0)))

    def run(steps: int, tokens: int, draft_s: float) -> list[int]:
        opened = []
        for step in range(steps):
            if budget.opens():
                opened.append(step)
                budget.choose([np.full(4, 0.5)] * sequences)
                for _ in range(sequences):
                    budget.observe(tokens, draft_s / sequences)
        return opened

    assert run(100, 3, 0.1) == list(range(100))
    wasted = run(2000, 1, 5.0)
    gaps = np.diff(wasted).tolist()
    first = next(place for place, gap in enumerate(gaps) if gap > 1)
    assert all(gap == 1 for gap in gaps[:first])
    assert gaps[first : first + 6] == [2, 4, 8, 16, 32, 64]
    assert set(gaps[first + 6 :]) == {64}
    # When they pay again, it takes some looks to be sure, and then it is open all the time.
    assert run(3000, 5, 0.0)[-100:] == list(range(2900, 3000))


def test_a_token_saves_its_share_of_a_plain_pass() -> None:
    budget = CostBudget(CostCurve((1, 65), (1.0, 1.64)))
    budget.choose([np.zeros(3)])
    assert budget.token_s == pytest.approx(1.0)
    budget.choose([np.zeros(3)] * 4)
    assert budget.token_s == pytest.approx(1.03 / 4)
