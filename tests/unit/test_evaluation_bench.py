"""Comparing methods: order, warm-up, differences and sums, with decoders that are scripts."""

from __future__ import annotations

import pytest

from decoder_client.evaluation.bench import PLAIN, Difference, Measurement, Method, find_difference, run_bench
from decoder_client.evaluation.prompts import BenchPrompt
from decoder_client.evaluation.report import (
    environment,
    json_record,
    markdown_table,
    prompt_header,
    prompt_lines,
    summarise,
)
from decoder_client.stats import GenerationStats

PROMPTS = [BenchPrompt("one", (1, 2)), BenchPrompt("two", (3,)), BenchPrompt("three", (4,))]
METHODS = [Method(PLAIN, 0), Method("dense", 8), Method("dresd", 8)]


class ScriptedDecoder:
    """Answers with the prompt's tokens plus 10, except where a method is told to go wrong."""

    def __init__(self, wrong: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] | None = None) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self._wrong = wrong or {}

    def __call__(self, method: Method, prompt: tuple[int, ...]) -> tuple[tuple[int, ...], GenerationStats]:
        self.calls.append((method.name, prompt))
        tokens = self._wrong.get((method.name, prompt), (*(token + 10 for token in prompt), 99))
        passes = 4 if method.name == PLAIN else 2
        stats = GenerationStats(
            tokens=4, forwards=passes, steps=passes - 1, steps_with_draft=passes - 1, drafted=8, accepted=2,
            total_s=2.0 if method.name == PLAIN else 1.0,
        )  # fmt: skip
        return tokens, stats


def measure(decode: ScriptedDecoder, gap: float = 1.0, repeats: int = 1) -> list[Measurement]:
    shown: list[Measurement] = []
    measured = run_bench(PROMPTS, METHODS, decode, lambda _text: gap, repeats=repeats, seed=3, on_prompt=shown.extend)
    assert shown == measured
    return measured


def test_every_method_warms_up_once_and_then_answers_every_prompt_in_turn() -> None:
    decode = ScriptedDecoder()
    measured = measure(decode, repeats=2)
    assert decode.calls[:3] == [(method.name, PROMPTS[0].tokens) for method in METHODS]
    rest = decode.calls[3:]
    for start in range(0, len(rest), 3):
        turn = rest[start : start + 3]
        assert len({prompt for _, prompt in turn}) == 1
        assert {name for name, _ in turn} == {method.name for method in METHODS}
    assert len({tuple(name for name, _ in rest[start : start + 3]) for start in range(0, len(rest), 3)}) > 1
    assert [(one.prompt, one.method, one.repeat) for one in measured] == [
        (prompt.name, method.label, repeat) for repeat in range(2) for prompt in PROMPTS for method in METHODS
    ]


@pytest.mark.parametrize(
    ("plain", "other", "position"),
    [((1, 2, 3), (1, 9, 3), 1), ((1, 2, 3), (1, 2), 2), ((1,), (1, 2), 1), ((), (5,), 0)],
)
def test_a_difference_is_found_where_outputs_part(
    plain: tuple[int, ...], other: tuple[int, ...], position: int
) -> None:
    asked = []

    def gap(text: list[int]) -> float:
        asked.append(list(text))
        return 0.5

    assert find_difference((7, 8), plain, other, gap) == Difference(position, 0.5)
    assert asked == [[7, 8, *plain[:position]]]
    assert find_difference((7, 8), plain, plain, gap) is None


@pytest.mark.parametrize(("gap", "near_tie"), [(1e-4, True), (5e-5, True), (1.1e-4, False), (2.0, False)])
def test_only_a_gap_within_rounding_is_a_near_tie(gap: float, near_tie: bool) -> None:
    measured = measure(ScriptedDecoder({("dense", (3,)): (13, 98)}), gap)
    (wrong,) = [one for one in measured if one.difference is not None]
    assert (wrong.prompt, wrong.method) == ("two", "dense@8")
    assert wrong.difference.is_near_tie == near_tie
    summary = {one.method: one for one in summarise(measured)}["dense@8"]
    assert (summary.prompts, summary.identical, summary.near_ties) == (3, 2, int(near_tie))
    line = next(line for line in prompt_lines([one for one in measured if one.prompt == "two"]) if "dense" in line)
    assert ("near tie at 1" in line) == near_tie
    assert ("NO at 1" in line) != near_tie


def test_summaries_add_up_all_steps_and_compare_with_plain() -> None:
    plain, dense, dresd = summarise(measure(ScriptedDecoder()))
    assert (plain.speedup, dense.speedup, dresd.speedup) == (1.0, 2.0, 2.0)
    assert dense.speedup_quartiles == (2.0, 2.0, 2.0)
    assert dense.stats.tokens_per_forward == 12 / 6
    assert dense.stats.acceptance_rate == 6 / 24
    table = markdown_table([plain, dense, dresd])
    assert "2.00x (2.00 · 2.00 · 2.00)" in table
    assert len({line.count("|") for line in table.splitlines()}) == 1


def test_without_plain_decoding_nothing_is_compared() -> None:
    measured = run_bench(
        PROMPTS, [Method("dense", 8)], ScriptedDecoder(), lambda _text: 0.0, repeats=1, seed=0, on_prompt=print
    )
    (summary,) = summarise(measured)
    assert (summary.identical, summary.speedup, summary.speedup_quartiles) == (None, None, None)
    assert "1.00x" not in markdown_table([summary]) + prompt_header()


def test_the_record_holds_settings_environment_and_every_measurement() -> None:
    measured = measure(ScriptedDecoder())
    record = json_record(measured, {"nodes": "8"}, environment(threads=2))
    assert record["settings"] == {"nodes": "8"}
    assert record["environment"]["torch_threads"] == 2
    assert set(record["environment"]["versions"]) >= {"torch", "transformers", "dresd"}
    assert len(record["measurements"]) == len(measured)
    assert record["summaries"][1]["stats"]["tokens_per_forward"] == 2.0
