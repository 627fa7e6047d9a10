"""The exceptions behind everything a decoder reports to its user."""

from __future__ import annotations


class DecoderError(Exception):
    """Something the user can act on: one clear sentence and a hint."""


class SettingError(DecoderError, ValueError):
    """A setting is out of range; names it and what it may be."""
