"""The report's sample answers: every token coloured by where it came from, every step with its beginning marked.

Knows samples; not how they were drafted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from decoder_client.evaluation.report.numbers import counted, percent
from decoder_client.evaluation.results import MODEL, Results, Sample, SampleToken
from dresd.page.layout import left_out, legend, prose, section
from dresd.page.markup import NOTHING, Markup, element, isolated, joined, text

_KNOWN = ("dense", "sparse", "context", "table")
"""Origins with a colour of their own; others share those that are left."""

_COLOURS = 6
_TITLE = "A sample answer, token by token"
_EMPTY = "\N{MIDDLE DOT}"
_BREAK = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"


def answer_section(results: Results) -> Markup:
    """All samples of the record."""
    samples = [sample for sample in results.samples if sample.tokens]
    if not samples:
        return left_out(_TITLE, "Left out: no answer was recorded token by token; plain decoding alone has none.")
    about = (
        "Colours and underlines say where a token came from: the source of the draft node that was accepted, or the "
        "target model itself. A bar begins what one forward pass confirmed. Hover over a token for both in words."
    )
    return section(_TITLE, prose(about), *map(_answer, samples), wide=True)


def _answer(sample: Sample) -> Markup:
    styles = _styles(sample.tokens)
    counts = Counter(token.origin for token in sample.tokens)
    keys = [
        (
            element("span", {"class": f"token {style}", "aria-hidden": "true"}, text("ab")),
            joined(isolated(origin), text(f" {counts[origin]} ({percent(counts[origin] / len(sample.tokens))})")),
        )
        for origin, style in styles.items()
    ]
    steps = [list(step) for _, step in groupby(sample.tokens, key=lambda token: token.step)]
    heading = element(
        "h3",
        None,
        isolated(sample.label),
        text(" answers "),
        isolated(sample.prompt),
        text(f": {counted(len(sample.tokens), 'token')} in {counted(len(steps), 'forward pass', 'forward passes')}"),
    )
    strip = element("p", {"class": "answer", "dir": "auto"}, *(_step(step, styles) for step in steps))
    return joined(heading, legend(keys), strip)


def _styles(tokens: Sequence[SampleToken]) -> dict[str, str]:
    """Style classes by origin: the known ones first, the model last."""
    found = dict.fromkeys(token.origin for token in tokens)
    styles = {name: f"origin{number}" for number, name in enumerate(_KNOWN) if name in found}
    others = [name for name in found if name not in _KNOWN and name != MODEL]
    free = [number for number in range(_COLOURS) if f"origin{number}" not in styles.values()]
    styles.update({name: f"origin{free[at % len(free)]}" for at, name in enumerate(others)})
    return {**styles, **({MODEL: "own"} if MODEL in found else {})}


def _step(tokens: Sequence[SampleToken], styles: dict[str, str]) -> Markup:
    return element("span", {"class": "step"}, *(_token(token, styles[token.origin]) for token in tokens))


def _token(token: SampleToken, style: str) -> Markup:
    hint = f"{token.origin}, step {token.step}"
    if not token.text:
        hint += ": part of a character, or nothing that shows"
    lines = (token.text or _EMPTY).replace("\r\n", "\n").split("\n")
    *broken, last = lines
    shown = [joined(text(f"{line}{_BREAK}"), element("br")) for line in broken]
    return element("span", {"class": f"token {style}", "title": hint}, *shown, text(last) if last else NOTHING)
