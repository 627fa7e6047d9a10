"""The one exception behind everything a decoder reports to its user."""

from __future__ import annotations


class DecoderError(Exception):
    """Something the user can act on: one clear sentence and a hint."""
