"""Where a corpus lies: what names stand for, here and in an object store, and that both are read alike."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from retriever_service.building.corpus import read_source
from retriever_service.building.errors import BuildError
from retriever_service.building.sources import Source, find_sources
from tests.support.object_store import serving_objects

LINES = "".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(3000)).encode()


def table() -> bytes:
    written = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": [f"text {number}" for number in range(3000)]}), written)
    return written.getvalue()


OBJECTS = {
    "bucket/corpus/a.jsonl": LINES,
    "bucket/corpus/b.jsonl": LINES[:300],
    "bucket/corpus/table.parquet": table(),
    "bucket/corpus/deep/c.jsonl": LINES[:100],
    "bucket/corpus/notes.md": b"no corpus",
    "bucket/other/d.jsonl": LINES[:50],
}


@pytest.fixture(scope="module")
def query() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, serving_objects(OBJECTS) as found:
        # Credentials as users give them: in the environment.
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in OBJECTS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


PATTERNS = [
    ("bucket/corpus/a.jsonl", ["a.jsonl"]),
    ("bucket/corpus/*.jsonl", ["a.jsonl", "b.jsonl"]),
    ("bucket/corpus/[ax].jsonl", ["a.jsonl"]),
    ("bucket/*/d.jsonl", ["d.jsonl"]),
    ("bucket/corpus/deep/*", ["c.jsonl"]),
    ("bucket/**/[!b-d].jsonl", ["a.jsonl"]),
    ("bucket/corpus/**/*.jsonl", ["a.jsonl", "b.jsonl", "c.jsonl"]),
    ("bucket/*/[a-d]*.jsonl", ["a.jsonl", "b.jsonl", "d.jsonl"]),
]


@pytest.mark.parametrize(("pattern", "expected"), PATTERNS)
def test_patterns_mean_the_same_everywhere(pattern: str, expected: list[str], query: str, folder: Path) -> None:
    for names in ([f"s3://{pattern}?{query}"], [str(folder / pattern)]):
        found = find_sources(names)
        assert [source.base_name for source in found] == expected
        for source in found:
            content = next(content for name, content in OBJECTS.items() if name.endswith(f"/{source.base_name}"))
            assert source.size == len(content)
            assert source.sha256() == hashlib.sha256(content).hexdigest()


def everything(source: Source, after: int = 0) -> list[object]:
    with source.open() as file:
        return [(at, getattr(item, "text", item)) for at, item in read_source(source, file, after)]


@pytest.mark.parametrize("name", ["a.jsonl", "table.parquet"])
def test_objects_are_read_like_files(name: str, query: str, folder: Path) -> None:
    (remote,) = find_sources([f"s3://bucket/corpus/{name}?{query}"])
    (local,) = find_sources([str(folder / "bucket" / "corpus" / name)])
    assert everything(remote) == everything(local)
    assert everything(remote, 2500) == everything(local, 2500)
    assert len(everything(remote)) == 3000


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("s3://bucket/corpus/nothing.jsonl", "There is no file 's3://bucket/corpus/nothing.jsonl'"),
        ("s3://bucket/corpus/nothing*.jsonl", r"No file matches 's3://bucket/corpus/nothing\*.jsonl'"),
        ("s3://bucket/corpus/notes.md", "Cannot tell what"),
        ("s3://bucket/corpus", "There is no file"),
    ],
)
def test_what_is_no_corpus_file_in_a_store_is_named(name: str, complaint: str, query: str) -> None:
    with pytest.raises(BuildError, match=complaint):
        find_sources([f"{name}?{query}"])


def test_a_file_named_twice_is_refused(folder: Path) -> None:
    name = str(folder / "bucket" / "corpus" / "a.jsonl")
    with pytest.raises(BuildError, match=r"a.jsonl' is named twice"):
        find_sources([name, str(folder / "bucket" / "corpus" / "*.jsonl")])
