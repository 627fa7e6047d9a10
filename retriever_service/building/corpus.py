"""Reads corpus files into records: text as it stands in them, or token ids. Knows no tokenizer and no model.

A record's kind follows from its fields: `prompt_ids` (with `response_ids`), `messages`, `prompt` (with `response`)
or `text`, looked for in this order; other fields are ignored. A .txt file is one record of text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retriever_service.building.errors import BuildError, first_line, os_error_sentence

if TYPE_CHECKING:
    import pyarrow

_MAX_TOKEN_ID = 2**31 - 1
_PARQUET_COLUMNS = ("prompt_ids", "response_ids", "messages", "prompt", "response", "text")


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """A question, with its answer if the corpus has one."""

    where: str
    prompt: str
    response: str | None


@dataclass(frozen=True, slots=True)
class ChatRecord:
    """The turns of a conversation: (role, content)."""

    where: str
    turns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TextRecord:
    """A text that is all answer."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """Token ids of the target's tokenizer, ready to be read by it."""

    where: str
    prompt: tuple[int, ...]
    response: tuple[int, ...] | None


Record = PromptRecord | ChatRecord | TextRecord | TokenRecord


def read_corpus_file(path: Path) -> Iterator[Record]:
    """The records of one file, in order, without holding the file in memory (a .txt file excepted).

    Raises:
        BuildError: the file is missing, unreadable, of an unknown kind or without records, or a record is malformed;
            names the file, and the line or row.
    """
    readers = {".jsonl": _read_jsonl, ".txt": _read_txt, ".parquet": _read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise BuildError(f"Cannot tell what '{path}' holds. Name files that end in .jsonl, .txt or .parquet.")
    if path.is_dir():
        raise BuildError(f"'{path}' is a directory. Name the files in it.")
    if path.exists() and not path.is_file():
        raise BuildError(f"'{path}' is a device or a pipe, and a corpus is read twice. Write it to a file first.")
    empty = True
    try:
        for record in reader(path):
            empty = False
            yield record
    except OSError as error:
        raise BuildError(f"Cannot read the corpus: {os_error_sentence(error)}") from error
    if empty:
        raise BuildError(f"The corpus file '{path}' holds no documents.")


def _read_jsonl(path: Path) -> Iterator[Record]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"'{path}', line {number}"
            try:
                # utf-8-sig: a byte order mark may open the file.
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise BuildError(f"{where}: not UTF-8 text. Convert the file to UTF-8.") from error
            if text:
                yield parse_record(_json(text, where), where)


def _json(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BuildError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
    except RecursionError as error:
        raise BuildError(
            f"{where}: the JSON is nested too deeply. Leave out what is no prompt and no answer."
        ) from error
    except ValueError as error:  # what else the decoder refuses: a whole number of thousands of digits
        raise BuildError(f"{where}: not JSON that can be read ({first_line(error)}).") from error


def _read_txt(path: Path) -> Iterator[Record]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BuildError(f"'{path}': not UTF-8 text (byte {error.start}).") from error
    if text.strip():
        yield TextRecord(f"'{path}'", text)


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow
    import pyarrow.parquet

    with path.open("rb") as file:
        rows = 0
        try:
            with pyarrow.parquet.ParquetFile(file) as table:
                columns = [column for column in _PARQUET_COLUMNS if column in table.schema_arrow.names]
                for batch in table.iter_batches(batch_size=1024, columns=columns):
                    for fields in _rows(batch):
                        rows += 1
                        yield parse_record(fields, f"'{path}', row {rows}")
        except UnicodeDecodeError as error:
            raise BuildError(
                f"'{path}', row {rows + 1}: not UTF-8 text. Write the file again with UTF-8 strings."
            ) from error
        # Of a damaged file pyarrow says OSError, too, without naming it.
        except (pyarrow.ArrowException, OSError) as error:
            raise BuildError(f"'{path}' is not a readable parquet file: {first_line(error)} Write it again.") from error


def _rows(batch: pyarrow.RecordBatch) -> Iterator[object]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        # One after the other up to the bad one, which fails again: so it is known which it is.
        yield from (batch.slice(row, 1).to_pylist()[0] for row in range(batch.num_rows))


def parse_record(fields: object, where: str) -> Record:
    """The record that decoded JSON, or a row of a table, stands for.

    Raises:
        BuildError: names `where` and what is wrong there.
    """
    if not isinstance(fields, Mapping):
        raise BuildError(f"{where}: a JSON object is expected, not {type(fields).__name__}.")
    # A null and a missing field are the same: columns of a table cannot be missing.
    present = {str(name): value for name, value in fields.items() if value is not None}
    if "prompt_ids" in present:
        response = present.get("response_ids")
        prompt = _token_ids(present["prompt_ids"], "prompt_ids", where)
        return TokenRecord(where, prompt, None if response is None else _token_ids(response, "response_ids", where))
    if "messages" in present:
        return ChatRecord(where, _turns(present["messages"], where))
    if "prompt" in present:
        answer = present.get("response")
        return PromptRecord(
            where,
            _string(present["prompt"], "prompt", where),
            None if answer is None else _string(answer, "response", where),
        )
    if "text" in present:
        return TextRecord(where, _string(present["text"], "text", where))
    raise BuildError(f"{where}: none of the fields prompt, messages, text or prompt_ids is there.")


def _string(value: object, field: str, where: str) -> str:
    if not isinstance(value, str):
        raise BuildError(f"{where}: field {field!r} must be a string, not {type(value).__name__}.")
    _check_text(value, f"field {field!r}", where)
    return value


def _check_text(value: str, what: str, where: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BuildError(
            f"{where}: {what} has half of a surrogate pair ({value[error.start]!a}), which no tokenizer reads. "
            "Was a text cut in the middle of a character?"
        ) from error


def _token_ids(value: object, field: str, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(token) is int and 0 <= token <= _MAX_TOKEN_ID for token in value):
        raise BuildError(f"{where}: field {field!r} must be a list of token ids (whole numbers in 0..{_MAX_TOKEN_ID}).")
    return tuple(value)


def _turns(value: object, where: str) -> tuple[tuple[str, str], ...]:
    turns = []
    for turn in value if isinstance(value, list) else []:
        role, content = (turn.get("role"), turn.get("content")) if isinstance(turn, Mapping) else (None, None)
        if not isinstance(role, str) or not isinstance(content, str):
            raise BuildError(f"{where}: each of 'messages' must have a 'role' and a 'content', both strings.")
        _check_text(role, "a role", where)
        _check_text(content, "a message", where)
        turns.append((role, content))
    if not turns:
        raise BuildError(f"{where}: field 'messages' must be a list of at least one message.")
    return tuple(turns)
