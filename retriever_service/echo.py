"""Text from elsewhere (a request, an argument, a file) as a message or a terminal may show it.

Whatever was sent, what is shown is short and has no control characters. It must not know who sent it, or why.
"""

from __future__ import annotations

_LONGEST = 200


def printable(text: str) -> str:
    """The text with control characters, and what no encoding has, escaped; all of it, however long."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def echoed(text: object, longest: int = _LONGEST) -> str:
    """`str` of what somebody sent, printable and cut to about `longest` characters."""
    shown = str(text)
    if len(shown) <= longest:
        return printable(shown)
    return f"{printable(shown[:longest])}... ({len(shown):,} characters)"


def quoted(text: str) -> str:
    """`echoed` between quotes."""
    return f"'{echoed(text)}'"
