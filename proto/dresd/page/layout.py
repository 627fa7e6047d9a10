"""What every part of the page is made of: sections, tables in boxes that scroll, legends, details.

Knows how they look; nothing of what they show.
"""

from __future__ import annotations

from collections.abc import Sequence

from dresd.page.markup import NOTHING, Markup, element, joined, text


def section(title: str, *content: Markup, wide: bool = False) -> Markup:
    """A titled part of the page; half the page wide on large screens unless `wide`."""
    heading = element("h2", None, text(title))
    return element("section", {"class": "wide" if wide else None}, heading, *content)


def left_out(title: str, why: str) -> Markup:
    """Stands for a part that has no data."""
    return section(title, element("p", {"class": "missing"}, text(why)))


def prose(sentence: str) -> Markup:
    """A paragraph of our own words."""
    return element("p", {"class": "about"}, text(sentence))


def table(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[Markup]], *, groups: Sequence[object] = ()
) -> Markup:
    """A table whose first column names the rows; it scrolls inside its box where it is too wide.

    Args:
        caption: what it shows.
        header: names of the columns.
        rows: as long as the header.
        groups: one a row: a line is drawn where it changes; empty for no lines.
    """
    head = element("tr", None, *(element("th", {"scope": "col"}, text(name)) for name in header))
    body = []
    for at, (first, *rest) in enumerate(rows):
        begins = bool(groups) and (at == 0 or groups[at] != groups[at - 1])
        cells = (element("td", None, cell) for cell in rest)
        body.append(
            element("tr", {"class": "group" if begins else None}, element("th", {"scope": "row"}, first), *cells)
        )
    whole = element(
        "table",
        None,
        element("caption", None, text(caption)),
        element("thead", None, head),
        element("tbody", None, *body),
    )
    # Focusable, so that the keyboard can scroll it.
    return element("div", {"class": "scroll", "tabindex": 0, "role": "region", "aria-label": caption}, whole)


def legend(entries: Sequence[tuple[Markup, Markup]]) -> Markup:
    """Keys and what they stand for."""
    return element("ul", {"class": "legend"}, *(element("li", None, key, label) for key, label in entries))


def details(summary: str, *content: Markup) -> Markup:
    """Content that opens on demand."""
    return element("details", None, element("summary", None, text(summary)), *content)


def pairs(entries: Sequence[tuple[str, Markup]]) -> Markup:
    """Names and values."""
    return element(
        "dl",
        None,
        *(
            element("div", None, element("dt", None, text(name)), element("dd", None, value or text("–")))
            for name, value in entries
        ),
    )


def lines(*rows: Markup) -> Markup:
    """One under the other."""
    first, *rest = rows or (NOTHING,)
    return joined(first, *(joined(element("br"), row) for row in rest))
