"""What the report says of a run in words: what was measured, on what, with what, and what came out first.

Knows the record; draws nothing.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from decoder_client.evaluation.report.numbers import counted, span
from decoder_client.evaluation.results import BENCH, PLAIN, Interval, MethodResult, Results, Setting
from dresd.page.layout import details, lines, pairs
from dresd.page.markup import Markup, element, isolated, joined, text


def title(results: Results) -> str:
    """Of the page."""
    how = "Drafts measured by decoding" if results.kind == BENCH else "Drafts measured by replay"
    return f"{how}: {results.model}"


def facts(results: Results) -> Markup:
    """What was run, when and where; the rest opens on demand."""
    environment, store = results.environment, results.store
    machine = [environment.processor, environment.accelerator, counted(environment.cpu_count, "core")]
    threads = f"{counted(environment.torch_threads, 'thread')} for the model"
    named = results.settings.get("prompts", results.settings.get("traces"))
    versions = environment.versions
    software = [f"{name} {versions[name]}" for name in ("dresd", "torch", "transformers") if name in versions]
    shown = [
        ("Model", text(results.model)),
        ("Datastore", text("none" if store is None else counted(store.entries, "entry", "entries"))),
        (
            "Prompts",
            text(f"{len(results.prompts)} from {Path(str(named)).name}" if named else str(len(results.prompts))),
        ),
        ("Date", text(environment.created.replace("T", " ").replace("+00:00", " UTC"))),
        ("Machine", lines(*(text(part) for part in machine if part))),
        ("Threads", text(threads)),
        ("Versions", text(", ".join([*software, f"Python {environment.python}"]))),
    ]
    return joined(pairs(shown), _everything(results))


def _everything(results: Results) -> Markup:
    environment = results.environment
    return details(
        "Command line, options, versions and environment",
        element("pre", {"tabindex": 0}, text(shlex.join(environment.argv))),
        pairs(
            [
                ("Platform", text(environment.platform)),
                ("Weights' fingerprint", text(results.weights_fingerprint)),
                *([] if results.store is None else [("Datastore's build", text(results.store.build_id))]),
                *((f"Option {name}", text(_written(value))) for name, value in results.settings.items()),
                *((f"Variable {name}", text(value)) for name, value in environment.variables.items()),
                *((f"Version of {name}", text(value)) for name, value in environment.versions.items()),
                ("Prompts", text(", ".join(results.prompts))),
            ]
        ),
    )


def _written(value: Setting) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "not given" if value is None else str(value)


def findings(results: Results) -> Markup:
    """The best method by each measure, and whether outputs were identical; then the notes."""
    drafting = [one for one in results.methods if one.method != PLAIN]
    cards = []
    if drafting:
        best = max(drafting, key=lambda one: one.tokens_per_forward.value)
        cards.append(_card("Most tokens per forward", best.tokens_per_forward, best, ""))
    timed = [(one.speedup, one) for one in drafting if one.speedup is not None]
    if timed:
        speedup, fastest = max(timed, key=lambda pair: pair[0].value)
        name = "Fastest" if results.kind == BENCH else "Fastest, predicted"
        cards.append(_card(name, speedup, fastest, "×"))
    compared = sum(one.compared for one in drafting)
    if compared:
        cards.append(_outputs(drafting, compared))
    notes = (element("p", {"class": "note"}, text("Note: "), isolated(note)) for note in results.notes)
    return joined(*([element("div", {"class": "cards"}, *cards)] if cards else []), *notes)


def _card(name: str, value: Interval, one: MethodResult, unit: str) -> Markup:
    return element(
        "div",
        None,
        element("h2", None, text(name)),
        element("strong", None, text(f"{value.value:.2f}{unit}")),
        element("p", None, isolated(one.label), text(f", 95% interval {span(value, unit)}")),
    )


def _outputs(drafting: list[MethodResult], compared: int) -> Markup:
    identical = sum(one.identical for one in drafting)
    ties = sum(one.near_ties for one in drafting)
    wrong = compared - identical - ties
    sentence = "answers equal to plain decoding's"
    if ties:
        sentence += f"; {ties} differ where rounding decides"
    if wrong:
        sentence += f"; {wrong} differ, which must not happen"
    return element(
        "div",
        {"class": "wrong" if wrong else None},
        element("h2", None, text("Identical output")),
        element("strong", None, text(f"{identical} of {compared}")),
        element("p", None, text(sentence)),
    )
