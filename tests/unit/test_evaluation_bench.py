"""Comparing methods: order, warm-up, forgetting, differences, sums and tables, with decoders that are scripts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from decoder_client.evaluation.bench import Decoded, find_difference, run_bench
from decoder_client.evaluation.measurement import Measurement
from decoder_client.evaluation.methods import METHODS as METHOD_NAMES
from decoder_client.evaluation.methods import Method, is_ours
from decoder_client.evaluation.prompts import BenchPrompt
from decoder_client.evaluation.recording import Recording
from decoder_client.evaluation.results import PLAIN, Difference, MethodResult
from decoder_client.evaluation.summary import OURS, compare, summarise
from decoder_client.evaluation.tables import prompt_header, prompt_lines
from decoder_client.stats import GenerationStats

PROMPTS = [BenchPrompt("one", (1, 2)), BenchPrompt("two", (3,)), BenchPrompt("three", (4,))]
METHODS = [Method(PLAIN, 0), Method("rest", 8), Method("dresd", 8)]
NO_RECORDING = Recording((2,), (1,), (), ())


class Script:
    """Makes decoders that answer with the prompt's tokens plus 10, except where a method is told to go wrong."""

    def __init__(self, wrong: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] | None = None) -> None:
        self.calls: list[tuple[int, str, tuple[int, ...]]] = []
        self._made = 0
        self._wrong = wrong or {}

    def __call__(self, method: Method) -> Callable[[tuple[int, ...]], Decoded]:
        self._made += 1
        number = self._made

        def decode(prompt: tuple[int, ...]) -> Decoded:
            self.calls.append((number, method.name, prompt))
            tokens = self._wrong.get((method.name, prompt), (*(token + 10 for token in prompt), 99))
            passes = 4 if method.name == PLAIN else 2
            stats = GenerationStats(
                tokens=4, forwards=passes, steps=passes - 1, steps_with_draft=passes - 1, drafted=8, accepted=2,
                total_s=2.0 if method.name == PLAIN else 1.0,
            )  # fmt: skip
            return Decoded(tokens, stats, NO_RECORDING)

        return decode


def measure(script: Script, gap: float = 1.0, repeats: int = 1, methods: list[Method] = METHODS) -> list[Measurement]:
    shown: list[Measurement] = []
    measured = run_bench(PROMPTS, methods, script, lambda _text: gap, repeats=repeats, seed=3, on_prompt=shown.extend)
    assert shown == measured
    return measured


def summaries(measured: list[Measurement]) -> list[MethodResult]:
    plain = [one.answer for one in measured if one.method.name == PLAIN]
    return [
        summarise(
            method.label, method.name, method.nodes, [one.answer for one in measured if one.method == method], plain
        )
        for method in dict.fromkeys(one.method for one in measured)
    ]


def test_every_method_warms_up_and_then_answers_every_prompt_in_turn() -> None:
    script = Script()
    measured = measure(script, repeats=2)
    warm, rest = script.calls[:3], script.calls[3:]
    assert [(name, prompt) for _, name, prompt in warm] == [(method.name, PROMPTS[0].tokens) for method in METHODS]
    for start in range(0, len(rest), 3):
        turn = rest[start : start + 3]
        assert len({prompt for _, _, prompt in turn}) == 1
        assert {name for _, name, _ in turn} == {method.name for method in METHODS}
    assert len({tuple(name for _, name, _ in rest[start : start + 3]) for start in range(0, len(rest), 3)}) > 1
    assert [(one.answer.prompt, one.method, one.answer.repeat) for one in measured] == [
        (prompt.name, method, repeat) for repeat in range(2) for prompt in PROMPTS for method in METHODS
    ]


def test_no_drafter_meets_an_answer_twice() -> None:
    script = Script()
    measure(script, repeats=3)
    met = [(decoder, prompt) for decoder, _, prompt in script.calls]
    assert len(set(met)) == len(met)
    # Within a repeat, what a method learned from one prompt serves the next.
    assert len({decoder for decoder, _ in met}) == len(METHODS) * (1 + 3)


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
    measured = measure(Script({("rest", (3,)): (13, 98)}), gap)
    (wrong,) = [one for one in measured if one.answer.difference is not None]
    assert (wrong.answer.prompt, wrong.method.label) == ("two", "rest@8")
    assert wrong.answer.difference.is_near_tie == near_tie
    summary = {one.label: one for one in summaries(measured)}["rest@8"]
    assert (summary.compared, summary.identical, summary.near_ties) == (3, 2, int(near_tie))
    line = next(
        line for line in prompt_lines([one for one in measured if one.answer.prompt == "two"]) if "rest" in line
    )
    assert ("near tie at 1" in line) == near_tie
    assert ("NO at 1" in line) != near_tie
    assert prompt_header().index("identical") < prompt_header().index("speed-up")


def test_summaries_add_up_all_steps_and_compare_with_plain() -> None:
    plain, rest, dresd = summaries(measure(Script(), repeats=2))
    assert (plain.speedup.value, rest.speedup.value, dresd.speedup.low, dresd.speedup.high) == (1.0, 2.0, 2.0, 2.0)
    assert (rest.speedups.first, rest.speedups.median, rest.speedups.third) == (2.0, 2.0, 2.0)
    assert rest.tokens_per_forward.value == 24 / 12
    assert (rest.acceptance_rate.value, rest.mean_accepted.value, rest.coverage.value) == (12 / 48, 2.0, 1.0)
    assert (rest.offered_by_depth, rest.accepted_by_depth) == ((12,), (6,))


def test_without_plain_decoding_nothing_is_compared_with_it() -> None:
    (summary,) = summaries(measure(Script(), methods=[Method("dresd", 8)]))
    assert (summary.compared, summary.identical, summary.speedup, summary.speedups) == (0, 0, None, None)


def pairs_of(methods: list[Method], others: Callable[[str], bool]) -> list[tuple[str, str]]:
    return [(one.label, one.other) for one in compare(summaries(measure(Script(), methods=methods)), others)]


def others(name: str) -> bool:
    return not is_ours(name)


def test_ours_is_compared_with_every_method_at_the_greatest_budget_not_above() -> None:
    methods = [
        Method(PLAIN, 0), Method("rest", 8), Method("rest", 64), Method("prompt-lookup", 10), Method("dresd-paper", 0),
        Method("dresd", 8), Method("dresd", 32), Method("dresd", 64),
    ]  # fmt: skip
    assert pairs_of(methods, others) == [
        ("dresd@8", "rest@8"), ("dresd@8", "dresd-paper"),
        ("dresd@32", "rest@8"), ("dresd@32", "prompt-lookup@10"), ("dresd@32", "dresd-paper"),
        ("dresd@64", "rest@64"), ("dresd@64", "prompt-lookup@10"), ("dresd@64", "dresd-paper"),
    ]  # fmt: skip
    assert pairs_of(methods, is_ours) == []


def test_variants_of_ours_are_compared_apart_from_methods_of_others() -> None:
    variants = [name for name in METHOD_NAMES if is_ours(name) and name != OURS]
    assert {"dresd-path", "dresd-no-dense", "dresd-auto"} <= set(variants)
    methods = [Method(name, 8) for name in METHOD_NAMES if name not in (PLAIN, OURS)] + [Method(OURS, 8)]
    assert pairs_of(methods, is_ours) == [("dresd@8", f"{name}@8") for name in variants]
    against = {other.partition("@")[0] for _, other in pairs_of(methods, others)}
    assert against == {name for name in METHOD_NAMES if not is_ours(name) and name != PLAIN}
    assert "dresd-paper" in against


@pytest.mark.parametrize(
    ("names", "pairs"), [(["rest", "dense"], [("dense@8", "rest@8")]), ([PLAIN], []), (["rest"], [])]
)
def test_without_ours_the_last_method_is_compared(names: list[str], pairs: list[tuple[str, str]]) -> None:
    methods = [Method(name, 0 if name == PLAIN else 8) for name in names]
    assert pairs_of(methods, others) == pairs
