"""What a number or a string in a manifest may be. A manifest is data from elsewhere: nothing in it is believed to be
of a size that memory, a file name or the wire can hold until it was checked here.

Knows fields, not which of them a manifest has.
"""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from dresd.identity import KeyRecipe, ModelIdentity
from retriever_service.datastore.codecs import CODECS

MAX_NPROBE = 65_535
"""Lists searched within a token's; more than any token has."""
_MAX_VOCAB_SIZE = 2**24
"""Many times the largest in use; arrays of one number a token stay small."""
_MAX_HIDDEN_SIZE = 2**20
_MAX_WINDOW = 2**16
_MAX_COUNT = 2**53
"""Beyond it, JSON's readers elsewhere round."""
_MAX_ENTRIES = 2**32 - 1
_MAX_NAME = 255
_MAX_TEXT = 2**16
_MAX_COMMAND = 2**22
"""A shell may expand one pattern to very many corpus files."""
_HEX_DIGITS = 64
_CONTROLS = {"Cc", "Zl", "Zp"}
"""Unicode's categories of control characters, and of what separates lines and paragraphs."""


def plain_name(name: str) -> str:
    """`name`, which leads to nothing outside the folder it is looked up in; ValueError for any other."""
    if name in {"", ".", ".."} or PurePosixPath(name).name != name or "\\" in name or not name.isprintable():
        raise ValueError("must be a plain file name")
    return name


def _known_codec(name: str) -> str:
    if name not in CODECS:
        raise ValueError(f"must be one of {', '.join(CODECS)}")
    return name


def _encodable(text: object) -> object:
    # Names of files and arguments may be bytes that are no text; Python keeps them as lone surrogates, which neither
    # JSON nor the wire can carry. They are for people, so they are escaped.
    return text.encode("utf-8", "backslashreplace").decode() if isinstance(text, str) else text


def _without_controls(text: str) -> str:
    # A line break in a name would forge lines of logs and terminals; those who write a manifest escape it.
    if any(unicodedata.category(character) in _CONTROLS for character in text):
        raise ValueError("must have no control characters")
    return text


def _known_model(model: ModelIdentity) -> ModelIdentity:
    _within("hidden_size", model.hidden_size, 1, _MAX_HIDDEN_SIZE)
    _within("vocab_size", model.vocab_size, 2, _MAX_VOCAB_SIZE)
    _hash("weights_fingerprint", model.weights_fingerprint)
    if model.tokenizer_hash:
        _hash("tokenizer_hash", model.tokenizer_hash)
    return replace(model, name=_short("name", model.name), revision=_short("revision", model.revision))


def _known_recipe(recipe: KeyRecipe) -> KeyRecipe:
    _within("dims", recipe.dims, 1, _MAX_HIDDEN_SIZE)
    _hash("reducer_hash", recipe.reducer_hash)
    return replace(recipe, layer=_short("layer", recipe.layer), norm=_short("norm", recipe.norm))


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least} to {most}")


def _hash(name: str, value: str) -> None:
    if len(value) != _HEX_DIGITS or not set(value) <= set("0123456789abcdef"):
        raise ValueError(f"{name} must be a sha256 in hex")


def _short(name: str, text: str) -> str:
    if len(text) > _MAX_TEXT:
        raise ValueError(f"{name} must have at most {_MAX_TEXT} characters")
    try:
        return _without_controls(str(_encodable(text)))
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error


PlainName = Annotated[str, Field(max_length=_MAX_NAME), AfterValidator(plain_name)]
Text = Annotated[str, BeforeValidator(_encodable), Field(max_length=_MAX_TEXT), AfterValidator(_without_controls)]
Command = Annotated[str, BeforeValidator(_encodable), Field(max_length=_MAX_COMMAND), AfterValidator(_without_controls)]
BuildId = Annotated[str, Field(min_length=1, max_length=_MAX_NAME), AfterValidator(_without_controls)]
Codec = Annotated[str, AfterValidator(_known_codec)]
Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
SegmentEntries = Annotated[int, Field(ge=0, le=_MAX_ENTRIES)]
Window = Annotated[int, Field(ge=1, le=_MAX_WINDOW)]
Nprobe = Annotated[int, Field(ge=0, le=MAX_NPROBE)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Sha256 = Annotated[str, Field(pattern=f"^[0-9a-f]{{{_HEX_DIGITS}}}$")]
Model = Annotated[ModelIdentity, AfterValidator(_known_model)]
Recipe = Annotated[KeyRecipe, AfterValidator(_known_recipe)]
