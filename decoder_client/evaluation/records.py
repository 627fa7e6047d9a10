"""Frozen dataclasses to JSON and back, checked by their own type hints.

Reads what it is told to expect and nothing else: an unknown, missing or mistyped field is an error that names it. Knows
no particular record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""What JSON can hold."""

T = TypeVar("T")


class RecordError(ValueError):
    """A field is missing, unknown or of another type; names it."""


def to_json(value: object) -> Json:
    """Dataclasses become objects by field name, tuples become lists; TypeError for what JSON cannot hold."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def from_json(kind: type[T], value: object, where: str = "") -> T:
    """Reads a dataclass that `to_json` wrote.

    Args:
        kind: a dataclass of None, bool, int, float, str, dataclasses, `tuple[X, ...]`, `Mapping[str, X]` and unions.
        value: decoded JSON.
        where: names the value in errors.

    Raises:
        RecordError: the value is not such a record; names the field.
    """
    read = _read(kind, value, where)
    if not isinstance(read, kind):
        raise _mismatch(kind, value, where)
    return read


def _read(kind: object, value: object, where: str) -> object:
    origin, options = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _read_any(options, value, where)
    if isinstance(kind, type) and is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_read(options[0], item, f"{where}[{number}]") for number, item in enumerate(value))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        return {str(name): _read(options[1], item, f"{where}.{name}") for name, item in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if isinstance(kind, type) and type(value) is kind:  # not isinstance: True is no number
        return value
    raise _mismatch(kind, value, where)


def _read_any(options: Sequence[object], value: object, where: str) -> object:
    if value is None and NoneType in options:
        return None
    first, *others = [option for option in options if option is not NoneType]
    # An exact type first: 2 must not become 2.0 where both are allowed.
    if type(value) in others:
        return value
    try:
        return _read(first, value, where)
    except RecordError:
        if not others:
            raise
    return _read_any(others, value, where)


def _read_dataclass(kind: type, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise _mismatch(kind, value, where)
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise RecordError(f"{_joined(where, unknown[0])} is unknown")
    read = {}
    for name, field in known.items():
        if name in value:
            read[name] = _read(hints[name], value[name], _joined(where, name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise RecordError(f"{_joined(where, name)} is missing")
    return kind(**read)


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _mismatch(kind: object, value: object, where: str) -> RecordError:
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    return RecordError(f"{where or 'the record'} must be {name}, not {type(value).__name__}")
