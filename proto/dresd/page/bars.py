"""A bar within a table's row, of parts beside each other. Knows shares and hints; not what they mean."""

from __future__ import annotations

from collections.abc import Sequence

from dresd.page.markup import Attributes, Markup, element, text

_HEIGHT = 14


def bar(parts: Sequence[tuple[float, str]]) -> Markup:
    """A bar of parts, each a share of the column's width and what is shown on hover; the style sheet has four colours.

    The numbers beside it have to say the same: nobody reads it aloud.
    """
    rects = []
    start = 0.0
    for at, (share, words) in enumerate(parts):
        width = 100 * share
        shape: Attributes = {
            "class": f"part{at}", "x": f"{start:.3f}%", "width": f"{width:.3f}%", "height": _HEIGHT,
        }  # fmt: skip
        hint = element("title", None, text(words))
        rects.append(element("svg", shape, hint, element("rect", {"width": "100%", "height": _HEIGHT})))
        start += width
    return element("svg", {"class": "bar", "height": _HEIGHT, "aria-hidden": "true"}, *rects)
