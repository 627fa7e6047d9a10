"""The record of results: what is written is read again, and what is no record is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.evaluation.results import (
    Answer,
    Comparison,
    CostPoint,
    Difference,
    Environment,
    Interval,
    MethodResult,
    Quartiles,
    Results,
    ResultsError,
    Sample,
    SampleToken,
    Setting,
    StoreInfo,
)
from decoder_client.stats import GenerationStats

ONE = Interval(1.0, 0.5, 2.0)
ANSWERS = (
    Answer("a", 0, GenerationStats(tokens=3, forwards=2, draft_s=0.5), (2, 1), (1, 0), (5, 6, 7), Difference(1, 1e-5)),
    Answer("b", 0, GenerationStats(tokens=4, forwards=2, draft_s=0.25), (3, 1, 1), (1, 1, 0), (5,), Difference(0, 0.3)),
    Answer("c", 0, GenerationStats(), (), ()),
)
METHOD = MethodResult(
    label="dresd@8", method="dresd", nodes=8, tokens_per_forward=ONE, acceptance_rate=ONE, mean_accepted=ONE,
    mean_drafted=ONE, coverage=ONE, speedup=None, speedups=Quartiles(1.0, 2.0, 3.0), compared=3, identical=1,
    answers=ANSWERS,
)  # fmt: skip
RESULTS = Results(
    kind="bench",
    model="m",
    weights_fingerprint="ab",
    prompts=("a", "b", "c"),
    store=StoreInfo("build", 7),
    settings={"nodes": (8, 64), "methods": ("plain",), "quick": True, "limit": None, "seed": 2, "ms": 2.0, "json": "x"},
    environment=Environment(
        ("p", "--x"), "now", "3.11", "linux", "cpu", "", 2, 1, {"OMP_NUM_THREADS": "1"}, {"a": "1"}
    ),
    methods=(METHOD,),
    comparisons=(Comparison("dresd@8", "rest@8", ONE, ONE), Comparison("dresd@8", "x", ONE, None)),
    ablations=(Comparison("dresd@8", "dresd-path@8", ONE, None),),
    samples=(Sample("a", "dresd@8", (SampleToken("hé\n", "model", 0),)),),
    cost_curve=(CostPoint(1, 0.5),),
    notes=("careful",),
)


def test_what_is_written_is_read_again() -> None:
    again = Results.from_json(RESULTS.to_json())
    assert again == RESULTS
    # Equality would hold for 2 and 2.0, 1 and True.
    assert [type(value) for value in again.settings.values()] == [tuple, tuple, bool, type(None), int, float, str]


@given(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text())
def test_settings_keep_value_and_type(value: Setting) -> None:
    again = Results.from_json(replace(RESULTS, settings={"it": value}).to_json()).settings["it"]
    assert (again, type(again)) == (value, type(value))


def test_sums_over_answers() -> None:
    assert (METHOD.total.tokens, METHOD.total.forwards, METHOD.total.draft_s) == (7, 4, 0.75)
    assert (METHOD.offered_by_depth, METHOD.accepted_by_depth) == ((5, 2, 1), (2, 1, 0))
    assert METHOD.near_ties == 1


def test_numbers_that_json_lacks_are_not_written() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        replace(RESULTS, cost_curve=(CostPoint(1, float("nan")),)).to_json()


def changed(change: Callable[[dict], object]) -> str:
    content = json.loads(RESULTS.to_json())
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "version None"),
        ('"text"', "version None"),
        (changed(lambda content: content.update(version=2)), "version 2"),
        (changed(lambda content: content.pop("model")), "model is missing"),
        (changed(lambda content: content.update(surprise=1)), "surprise is unknown"),
        (changed(lambda content: content.update(prompts="abc")), "prompts must be tuple"),
        (changed(lambda content: content["methods"][0].update(nodes=True)), r"methods\[0\].nodes must be int"),
        (changed(lambda content: content["methods"][0].update(nodes=8.5)), r"methods\[0\].nodes must be int"),
        (
            changed(lambda content: content["methods"][0]["speedups"].update(median="1")),
            r"speedups.median must be float",
        ),
        (changed(lambda content: content["methods"][0]["answers"].append(3)), r"answers\[3\] must be Answer"),
        (changed(lambda content: content["settings"].update(nodes=[1, "a"])), r"settings.nodes"),
        (changed(lambda content: content["settings"].update(nodes={})), r"settings.nodes"),
        (changed(lambda content: content.update(store=[])), "store must be StoreInfo"),
    ],
)
def test_what_is_no_record_is_refused_by_name(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=complaint):
        Results.from_json(text)
    path = tmp_path / "some results.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ResultsError, match=r"some results\.json"):
        Results.load(path)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for name in ("none.json", "binary.json"):
        with pytest.raises(ResultsError, match=name):
            Results.load(tmp_path / name)
