"""The report's breakdown of a step's time, as a table whose bars stack. Knows stats; not where they come from."""

from __future__ import annotations

from collections.abc import Sequence

from decoder_client.evaluation.report.numbers import milliseconds
from decoder_client.evaluation.results import REPLAY, MethodResult, Results
from decoder_client.stats import GenerationStats
from dresd.page.bars import bar
from dresd.page.layout import left_out, legend, prose, section, table
from dresd.page.markup import Markup, element, text

_PARTS = ("forward", "retrieval", "draft", "verification")
_TITLE = "Where a step's time goes"


def step_time_section(results: Results) -> Markup:
    """Milliseconds of every method's passes, by what they were spent on."""
    seconds = [_parts(one.total) for one in results.methods]
    longest = max(map(sum, seconds), default=0.0)
    if longest <= 0:
        return left_out(_TITLE, "Left out: nothing was timed.")
    spent = [at for at in range(len(_PARTS)) if any(parts[at] for parts in seconds)]
    rows = [
        [text(one.label), _bar(parts, longest), *_numbers(one, parts, spent)]
        for one, parts in zip(results.methods, seconds, strict=True)
    ]
    whole = table(
        "Mean time of a step, in milliseconds",
        ["method", "shares", *(_PARTS[at] for at in spent), "ms a step", "ms a token"],
        rows,
        groups=[one.method for one in results.methods],
    )
    keys = [(_key(at), text(_PARTS[at])) for at in spent]
    return section(_TITLE, prose(_about(results)), legend(keys), whole, wide=True)


def _about(results: Results) -> str:
    about = "Over all forward passes, the prompt's included; draft is all drafting but the wait for the retriever."
    if results.kind != REPLAY:
        return about
    if any(one.total.forward_s for one in results.methods):
        return f"{about} Forward passes are the cost curve's; a replay verifies nothing."
    return f"{about} Without a cost curve (--cost-curve) a replay knows no forward passes; it verifies nothing."


def _parts(total: GenerationStats) -> list[float]:
    """Seconds a pass, in the order of `_PARTS`."""
    spent = (total.forward_s, total.retrieval_s, max(total.draft_s - total.retrieval_s, 0.0), total.verify_s)
    return [part / total.forwards if total.forwards else 0.0 for part in spent]


def _numbers(one: MethodResult, parts: Sequence[float], shown: Sequence[int]) -> list[Markup]:
    total = sum(parts)
    a_token = total * one.total.forwards / one.total.tokens if one.total.tokens else 0.0
    return [text(milliseconds(value)) for value in (*(parts[at] for at in shown), total, a_token)]


def _bar(parts: Sequence[float], longest: float) -> Markup:
    named = zip(_PARTS, parts, strict=True)
    return bar([(part / longest, f"{name}: {milliseconds(part)} ms") for name, part in named])


def _key(at: int) -> Markup:
    square = element("rect", {"width": 14, "height": 14})
    return element("svg", {"class": f"key part{at}", "viewBox": "0 0 14 14", "aria-hidden": "true"}, square)
