"""Reads answers that are known token by token: .jsonl records of prompt_ids and response_ids.

That is what `dresd-retriever build --answers-out` writes and what a corpus of token ids holds. Texts are refused, since
encoding them again may give other tokens than the model wrote. Knows the file format only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from decoder_client.errors import DecoderError


class TokenFileError(DecoderError):
    """A file of known answers cannot be used: one sentence and a hint."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One prompt with its answer.

    Attributes:
        name: for tables: the record's "name" or "family" with its line number.
        prompt: token ids, at least one.
        answer: token ids, at least one.
    """

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def read_token_records(path: Path, *, vocab_size: int, limit: int | None = None) -> list[TokenRecord]:
    """Reads a .jsonl file of {"prompt_ids": [...], "response_ids": [...]} records, leaving out empty answers.

    Args:
        path: the file.
        vocab_size: token ids lie below it.
        limit: stop after this many records.

    Raises:
        TokenFileError: unreadable, malformed (names the line), or without any answer.
    """
    records: list[TokenRecord] = []
    if path.exists() and not path.is_file():
        raise TokenFileError(f"{str(path)!r} is not a file. Name a .jsonl file of prompt_ids and response_ids.")
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                if limit is not None and len(records) == limit:
                    break
                if line.strip():
                    records += _parse(line, number, path, vocab_size)
    except (OSError, UnicodeDecodeError) as error:
        raise TokenFileError(f"Cannot read the answers in {str(path)!r}: {error}.") from error
    if not records:
        raise TokenFileError(f"No answers in {str(path)!r}. Write prompt_ids and response_ids, one record a line.")
    return records


def _parse(line: str, number: int, path: Path, vocab_size: int) -> Iterator[TokenRecord]:
    where = f"Line {number} of {str(path)!r}"
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TokenFileError(f"{where} is not JSON ({error}). Write one record a line.") from error
    if not isinstance(record, Mapping):
        raise TokenFileError(f"{where} is not a record with prompt_ids and response_ids.")
    prompt, answer = (_ids(record, field, where, vocab_size) for field in ("prompt_ids", "response_ids"))
    if not prompt:
        raise TokenFileError(f"{where} has an empty prompt. Give at least one token id.")
    if answer:
        name = str(record.get("name") or record.get("family") or "prompt")
        yield TokenRecord(f"{name}:{number}", prompt, answer)


def _ids(record: Mapping[str, object], field: str, where: str, vocab_size: int) -> tuple[int, ...]:
    ids = record.get(field)
    if ids is None:
        raise TokenFileError(
            f"{where} has no {field}. Answers must be token ids: use the file that "
            "`dresd-retriever build --respond --answers-out FILE` writes."
        )
    if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        raise TokenFileError(f"{where}: {field} must be a list of token ids from 0 to {vocab_size - 1}.")
    return tuple(ids)
