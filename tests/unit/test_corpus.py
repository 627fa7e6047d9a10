"""Corpus files: what each record means, and that a bad one is named by file and line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from retriever_service.building.corpus import (
    MAX_RECORD_BYTES,
    BadRecord,
    ChatRecord,
    PromptRecord,
    Record,
    TextRecord,
    TokenRecord,
    read_source,
)
from retriever_service.building.errors import BuildError
from retriever_service.building.sources import find_sources

FIELDS = [
    {"prompt": "a?", "response": "b.", "source": "ignored"},
    {"prompt": "c?"},
    {"messages": [{"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}]},
    {"text": "f"},
    {"prompt_ids": [1, 2], "response_ids": [3], "prompt": "the ids win", "split": "train"},
]


def write_jsonl(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(path: Path, after: int = 0) -> list[tuple[int, Record | BadRecord]]:
    """Every record of a file with its position."""
    (source,) = find_sources([str(path)])
    with source.open() as file:
        return list(read_source(source, file, after))


def read_all(path: Path) -> list[Record]:
    """The records, all of which are to be fine."""
    records: list[Record] = []
    for _, item in read(path):
        assert not isinstance(item, BadRecord), item
        records.append(item)
    return records


def the_bad_one(path: Path) -> BadRecord:
    """The only bad record of a file; what is around it is read all the same."""
    (bad,) = [item for _, item in read(path) if isinstance(item, BadRecord)]
    return bad


def contents(path: Path) -> list[object]:
    """The records without where they stand."""
    found: list[object] = []
    for record in read_all(path):
        match record:
            case PromptRecord():
                found.append((record.prompt, record.response))
            case ChatRecord():
                found.append(record.turns)
            case TextRecord():
                found.append(record.text)
            case TokenRecord():
                found.append((record.prompt, record.response))
    return found


EXPECTED = [("a?", "b."), ("c?", None), (("user", "d"), ("assistant", "e")), "f", ((1, 2), (3,))]


def test_jsonl_of_every_kind(tmp_path: Path) -> None:
    lines = [json.dumps(fields) for fields in FIELDS]
    assert contents(write_jsonl(tmp_path / "corpus.jsonl", *lines[:2], "", *lines[2:])) == EXPECTED


def test_jsonl_with_a_byte_order_mark_and_other_scripts(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes("\ufeff".encode() + '{"text": "grüß 你好"}'.encode())
    assert contents(path) == ["grüß 你好"]


def test_parquet_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    columns = ["prompt", "response", "messages", "text", "prompt_ids", "response_ids", "other"]
    table = pyarrow.table({name: [fields.get(name) for fields in FIELDS] for name in columns})
    pyarrow.parquet.write_table(table, path)
    assert contents(path) == EXPECTED


def test_a_txt_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("one\n\ntwo\n", encoding="utf-8")
    assert contents(path) == ["one\n\ntwo\n"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"text": ', "not JSON"),
        ("[1]", "object is expected"),
        ('{"question": "a"}', "none of the fields"),
        ('{"text": null}', "none of the fields"),
        ('{"text": 3}', "'text' must be a string"),
        ('{"prompt": "a", "response": ["b"]}', "'response' must be a string"),
        ('{"prompt_ids": [1, "2"]}', "'prompt_ids' must be a list of token ids"),
        ('{"prompt_ids": [1, true]}', "'prompt_ids' must be a list of token ids"),
        ('{"prompt_ids": [1], "response_ids": [-1]}', "'response_ids' must be a list of token ids"),
        ('{"prompt_ids": [1.0]}', "'prompt_ids' must be a list of token ids"),
        ('{"prompt_ids": [2147483648]}', r"whole numbers in 0\.\.2147483647"),
        ('{"prompt_ids": "12"}', "'prompt_ids' must be a list of token ids"),
        ('{"prompt_ids": [' + "9" * 5000 + "]}", "not JSON that can be read|whole numbers in"),
        ('{"text": "a", "more": ' + "[" * 200_000 + "]" * 200_000 + "}", "nested too deeply"),
        ('{"text": ' + '{"a":' * 200_000 + "1" + "}" * 200_001, "nested too deeply"),
        (r'{"text": "\ud800"}', "field 'text' has half of a surrogate pair"),
        (r'{"prompt": "a\udfff"}', "field 'prompt' has half of a surrogate pair"),
        (r'{"prompt": "a", "response": "\ud800\ud800"}', "field 'response' has half of a surrogate pair"),
        (r'{"messages": [{"role": "user", "content": "\udc00"}]}', "a message has half of a surrogate pair"),
        (r'{"messages": [{"role": "\udc00", "content": "a"}]}', "a role has half of a surrogate pair"),
        ('{"messages": []}', "at least one message"),
        ('{"messages": [{"role": "user"}]}', "'role' and a 'content'"),
        ('{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "'role' and a 'content'"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", '{"text": "fine"}', "", line, '{"text": "fine"}')
    bad = the_bad_one(path)
    assert re.search(complaint, bad.sentence)
    assert bad.sentence.startswith(f"'{path}', line 3")
    assert re.search(r"\. [A-Z].*[.?]$", bad.sentence), "no hint"
    assert not bad.damaged
    assert [at for at, _ in read(path)] == [1, 3, 4]


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    assert the_bad_one(path) == BadRecord(f"'{path}', line 2: not UTF-8 text.", damaged=True)


@pytest.mark.parametrize("more", [1, MAX_RECORD_BYTES + 7])
def test_a_line_without_an_end_is_named_and_the_next_is_read(more: int, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "a"}\n')
        file.write(b" " * (MAX_RECORD_BYTES + more))
        file.write(b'\n{"text": "b"}\n')
    assert the_bad_one(path) == BadRecord(f"'{path}', line 2: longer than 64 MiB.", damaged=True)
    assert [at for at, _ in read(path)] == [1, 2, 3]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet", ".txt"])
def test_reading_goes_on_behind_any_record(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"corpus{ending}"
    texts = [f"text {number}" for number in range(3000 if ending == ".parquet" else 5)]
    if ending == ".txt":
        path.write_text(texts[0])
    elif ending == ".jsonl":
        write_jsonl(path, *(json.dumps({"text": text}) for text in texts))
    else:
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    whole = read(path)
    for after in {0, 1, 2, 1023, 1024, 1025, len(whole)}:
        assert read(path, after) == whole[after:]


def test_a_row_of_parquet_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    texts = pyarrow.array([b"fine"] * 1500 + [b"\xff"] + [b"fine"] * 9, pyarrow.binary()).cast(pyarrow.binary())
    strings = pyarrow.StringArray.from_buffers(len(texts), texts.buffers()[1], texts.buffers()[2])
    pyarrow.parquet.write_table(pyarrow.table({"text": strings}), path)
    assert the_bad_one(path) == BadRecord(f"'{path}', row 1501: not UTF-8 text.", damaged=True)
    assert len(read(path)) == 1510


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("how", ["cut off", "overwritten"])
def test_a_damaged_parquet_file_is_named(cut: float, how: str, tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [f"text {number}" for number in range(5000)]}), path)
    content = path.read_bytes()
    at = int(cut * len(content))
    path.write_bytes(content[:at] + (b"\xff" * 64 + content[at + 64 :] if how == "overwritten" else b""))
    with pytest.raises(BuildError) as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("ending", [".jsonl", ".txt", ".parquet"])
def test_a_pipe_is_refused_instead_of_waited_for(ending: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"pipe{ending}")
    with pytest.raises(BuildError, match="a device or a pipe"):
        read(tmp_path / f"pipe{ending}")


def test_a_malformed_row_of_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt_ids": [[1], [-1]]}), path)
    assert "row 2: field 'prompt_ids'" in the_bad_one(path).sentence


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("empty.jsonl", b"\n\n", "holds no documents"),
        ("empty.txt", b" \n", "holds no documents"),
        ("broken.parquet", b"PAR1 but not really", "not a readable parquet file"),
        ("corpus.csv", b"a,b", "Cannot tell what"),
    ],
)
def test_an_unusable_file_is_named(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BuildError, match=complaint) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_a_txt_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"gr\xfc\xdf")
    assert the_bad_one(path) == BadRecord(f"'{path}': not UTF-8 text (byte 2).", damaged=True)


@pytest.mark.parametrize("name", ["missing.jsonl", "missing.txt", "missing.parquet"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(BuildError, match="No such file") as caught:
        read(tmp_path / name)
    assert name in str(caught.value)


def test_a_folder_is_no_corpus_file(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(BuildError, match="directory"):
        read(tmp_path / "folder.jsonl")
