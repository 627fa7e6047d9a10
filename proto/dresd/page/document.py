"""A whole page: it asks nothing of the network, runs no script, and prints."""

from __future__ import annotations

from importlib.resources import files

from dresd import page
from dresd.page.markup import Markup, element, text

# Whatever a mistake may let into the page, no browser fetches or runs it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def document(title: str, header: Markup, *sections: Markup) -> str:
    """The page's text, without characters that UTF-8 cannot hold; equal parts give equal bytes.

    Args:
        title: of the page, shown above all.
        header: what stands below it, over the whole width.
        sections: in order, see `layout.section`.
    """
    style = Markup(files(page).joinpath("page.css").read_text(encoding="utf-8"))
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": _POLICY}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", None, text(title)),
        element("style", None, style),
    )
    top = element("header", None, element("h1", None, text(title)), header)
    body = element("body", None, element("main", None, top, *sections))
    return f"<!doctype html>\n{element('html', {'lang': 'en'}, head, body)}\n"
