"""Markup that is well-formed by construction, as HTML and as XML, whatever text goes into it.

The one place where text becomes markup: nothing else in the report writes an angle bracket. Knows no results.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from html import escape
from typing import NewType, TypeAlias

Markup = NewType("Markup", str)
"""Text that is markup already."""

Attributes: TypeAlias = Mapping[str, "str | int | float | None"]
"""Names and values; None leaves an attribute out."""

NOTHING = Markup("")

_WITHOUT_CONTENT = frozenset({"br", "line", "meta", "path", "polyline", "rect"})
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
_FIRST_PICTURE = 0x2400
_DELETE = 0x7F


def readable(value: str) -> str:
    """The text with every character made visible that has no shape, moves its neighbours or is none.

    Control characters become their pictures; direction marks and other format characters, lone surrogates,
    noncharacters and line separators become their code points; a combining mark in front gets a circle to sit on.
    """
    shown = "".join(map(_visible, value))
    if shown and not shown.strip(_JOINERS):
        return "".join(map(_code_point, shown))
    return f"\N{DOTTED CIRCLE}{shown}" if shown and unicodedata.combining(shown[0]) else shown


def _visible(character: str) -> str:
    code = ord(character)
    if code < ord(" "):
        return chr(_FIRST_PICTURE + code)
    if code == _DELETE:
        return "\N{SYMBOL FOR DELETE}"
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in _JOINERS
    return _code_point(character) if hidden or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF else character


def _code_point(character: str) -> str:
    return f"⟨U+{ord(character):04X}⟩"


def text(value: str) -> Markup:
    """Plain text, made readable."""
    return Markup(escape(readable(value)))


def element(name: str, attributes: Attributes | None = None, *children: Markup) -> Markup:
    """One element; attribute values are text, made readable; numbers have at most two decimals."""
    start = "".join(
        f' {attribute}="{text(_number(value))}"' for attribute, value in (attributes or {}).items() if value is not None
    )
    if name in _WITHOUT_CONTENT:
        return Markup(f"<{name}{start}/>")
    return Markup(f"<{name}{start}>{''.join(children)}</{name}>")


def _number(value: str | int | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def joined(*parts: Markup, between: str = "") -> Markup:
    """One after the other, with text between them."""
    return Markup(text(between).join(parts))


def isolated(value: str) -> Markup:
    """Text from data inside a sentence: its writing direction stays its own."""
    return element("bdi", None, text(value))
