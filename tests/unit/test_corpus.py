"""Corpus files: what each record means, and that a bad one is named by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from retriever_service.building.corpus import ChatRecord, PromptRecord, TextRecord, TokenRecord, read_corpus_file
from retriever_service.building.errors import BuildError

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


def contents(path: Path) -> list[object]:
    """The records without where they stand."""
    found: list[object] = []
    for record in read_corpus_file(path):
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
        ('{"messages": []}', "at least one message"),
        ('{"messages": [{"role": "user"}]}', "'role' and a 'content'"),
        ('{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "'role' and a 'content'"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", '{"text": "fine"}', "", line)
    with pytest.raises(BuildError, match=complaint) as caught:
        list(read_corpus_file(path))
    assert f"'{path}', line 3" in str(caught.value)


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    with pytest.raises(BuildError, match=r"line 2: not UTF-8"):
        list(read_corpus_file(path))


def test_a_malformed_row_of_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt_ids": [[1], [-1]]}), path)
    with pytest.raises(BuildError, match=r"row 2: field 'prompt_ids'"):
        list(read_corpus_file(path))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("empty.jsonl", b"\n\n", "holds no documents"),
        ("empty.txt", b" \n", "holds no documents"),
        ("latin1.txt", b"gr\xfc\xdf", "not UTF-8"),
        ("broken.parquet", b"PAR1 but not really", "not a readable parquet file"),
        ("corpus.csv", b"a,b", "Cannot tell what"),
    ],
)
def test_an_unusable_file_is_named(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BuildError, match=complaint) as caught:
        list(read_corpus_file(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["missing.jsonl", "missing.txt", "missing.parquet"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(BuildError, match="No such file") as caught:
        list(read_corpus_file(tmp_path / name))
    assert name in str(caught.value)


def test_a_folder_is_no_corpus_file(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(BuildError, match="directory"):
        list(read_corpus_file(tmp_path / "folder.jsonl"))
