"""Reads corpus files into records: text as it stands in them, or token ids. Knows no tokenizer and no model.

A record's kind follows from its fields: `prompt_ids` (with `response_ids`), `messages`, `prompt` (with `response`)
or `text`, looked for in this order; other fields are ignored. A .txt file is one record of text. What is no record
comes back as a `BadRecord`, so that a reader can go on behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from retriever_service.building.errors import BuildError, first_line
from retriever_service.building.sources import Source

if TYPE_CHECKING:
    import pyarrow

MAX_RECORD_BYTES = 64 << 20
"""A line, or a .txt file, that is longer is no document."""
_MAX_TOKEN_ID = 2**31 - 1
_PARQUET_COLUMNS = ("prompt_ids", "response_ids", "messages", "prompt", "response", "text")
_PARQUET_ROWS = 1024


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


@dataclass(frozen=True, slots=True)
class BadRecord:
    """What cannot be read as a record.

    Attributes:
        sentence: where it is, and what is wrong there.
        damaged: it is no text at all, or endless; else it is text, but no record.
    """

    sentence: str
    damaged: bool


def read_source(source: Source, file: BinaryIO, after: int = 0) -> Iterator[tuple[int, Record | BadRecord]]:
    """The records of one file with their positions (line or row, from 1), without holding the file in memory.

    Args:
        source: where the file is.
        file: it, opened; read to its end, a .parquet file in any order.
        after: the position behind which to begin.

    Raises:
        BuildError: the file is no .parquet file although it is called so, or there is no record in it at all.
    """
    reader = {".jsonl": _read_jsonl, ".txt": _read_txt, ".parquet": _read_parquet}[source.suffix]
    empty = after == 0
    for item in reader(source.name, file, after):
        empty = False
        yield item
    if empty:
        raise BuildError(f"The corpus file '{source.name}' holds no documents. Check that it is the one you mean.")


def _read_jsonl(name: str, file: BinaryIO, after: int) -> Iterator[tuple[int, Record | BadRecord]]:
    number = 0
    while line := file.readline(MAX_RECORD_BYTES + 1):
        number += 1
        where = f"'{name}', line {number}"
        too_long = len(line) > MAX_RECORD_BYTES
        while too_long and not line.endswith(b"\n") and (line := file.readline(MAX_RECORD_BYTES)):
            pass
        if number <= after:
            continue
        if too_long:
            yield number, BadRecord(f"{where}: longer than {MAX_RECORD_BYTES >> 20} MiB.", damaged=True)
            continue
        try:
            # utf-8-sig: a byte order mark may open the file.
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            yield number, BadRecord(f"{where}: not UTF-8 text.", damaged=True)
            continue
        if text:
            yield number, _parsed(text, where)


def _parsed(text: str, where: str) -> Record | BadRecord:
    try:
        return parse_record(_json(text, where), where)
    except BuildError as error:
        return BadRecord(str(error), damaged=False)


def _json(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BuildError(
            f"{where}: not JSON ({error.msg} at column {error.colno}). Write one JSON object a line."
        ) from error
    except RecursionError as error:
        raise BuildError(
            f"{where}: the JSON is nested too deeply. Leave out what is no prompt and no answer."
        ) from error
    except ValueError as error:  # what else the decoder refuses: a whole number of thousands of digits
        raise BuildError(f"{where}: not JSON that can be read ({first_line(error)}). Write it shorter.") from error


def _read_txt(name: str, file: BinaryIO, after: int) -> Iterator[tuple[int, Record | BadRecord]]:
    content = file.read(MAX_RECORD_BYTES + 1)
    if after:
        return
    if len(content) > MAX_RECORD_BYTES:
        yield 1, BadRecord(f"'{name}': longer than {MAX_RECORD_BYTES >> 20} MiB.", damaged=True)
        return
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield 1, BadRecord(f"'{name}': not UTF-8 text (byte {error.start}).", damaged=True)
        return
    if text.strip():
        yield 1, TextRecord(f"'{name}'", text)


def _read_parquet(name: str, file: BinaryIO, after: int) -> Iterator[tuple[int, Record | BadRecord]]:
    import pyarrow
    import pyarrow.parquet

    row = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            columns = [column for column in _PARQUET_COLUMNS if column in table.schema_arrow.names]
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=columns):
                begin, row = row, row + batch.num_rows
                if row > after:
                    skipped = max(after - begin, 0)
                    yield from _batch(name, batch.slice(skipped), begin + skipped)
    # Of a damaged file pyarrow says OSError, too, without naming it.
    except (pyarrow.ArrowException, OSError) as error:
        raise BuildError(f"'{name}' is not a readable parquet file: {first_line(error)} Write it again.") from error


def _batch(name: str, batch: pyarrow.RecordBatch, before: int) -> Iterator[tuple[int, Record | BadRecord]]:
    try:
        rows: list[object] = batch.to_pylist()
    except UnicodeDecodeError:  # one after the other, so that it is known which it is
        rows = [_row(batch, at) for at in range(batch.num_rows)]
    for number, fields in enumerate(rows, start=before + 1):
        where = f"'{name}', row {number}"
        if fields is None:
            yield number, BadRecord(f"{where}: not UTF-8 text.", damaged=True)
            continue
        try:
            yield number, parse_record(fields, where)
        except BuildError as error:
            yield number, BadRecord(str(error), damaged=False)


def _row(batch: pyarrow.RecordBatch, at: int) -> object:
    try:
        return batch.slice(at, 1).to_pylist()[0]
    except UnicodeDecodeError:
        return None


def parse_record(fields: object, where: str) -> Record:
    """The record that decoded JSON, or a row of a table, stands for.

    Raises:
        BuildError: names `where` and what is wrong there.
    """
    if not isinstance(fields, Mapping):
        raise BuildError(
            f'{where}: a JSON object is expected, not {type(fields).__name__}. Write it as {{"prompt": "...", '
            '"response": "..."}, for example.'
        )
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
    raise BuildError(f"{where}: none of the fields prompt, messages, text or prompt_ids is there. Name one of them so.")


def _string(value: object, field: str, where: str) -> str:
    if not isinstance(value, str):
        raise BuildError(
            f"{where}: field {field!r} must be a string, not {type(value).__name__}. Write it as text in quotes."
        )
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
        raise BuildError(
            f"{where}: field {field!r} must be a list of token ids (whole numbers in 0..{_MAX_TOKEN_ID}). Write them "
            "as the model's tokenizer gives them."
        )
    return tuple(value)


def _turns(value: object, where: str) -> tuple[tuple[str, str], ...]:
    turns = []
    for turn in value if isinstance(value, list) else []:
        role, content = (turn.get("role"), turn.get("content")) if isinstance(turn, Mapping) else (None, None)
        if not isinstance(role, str) or not isinstance(content, str):
            raise BuildError(
                f"{where}: each of 'messages' must have a 'role' and a 'content', both strings. Write a turn as "
                '{"role": "user", "content": "..."}.'
            )
        _check_text(role, "a role", where)
        _check_text(content, "a message", where)
        turns.append((role, content))
    if not turns:
        raise BuildError(
            f"{where}: field 'messages' must be a list of at least one message. Give a turn of the user and one of the "
            "assistant."
        )
    return tuple(turns)
