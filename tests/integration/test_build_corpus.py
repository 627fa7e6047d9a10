"""What a build does with its corpus: every kind of file together, equal documents, damaged and malformed records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from retriever_service.building.config import BuildConfig
from retriever_service.building.errors import BuildError
from retriever_service.building.planning import Planned, Totals
from tests.support.building import QUESTIONS, write_corpus
from tests.support.in_process_jobs import build_here
from tests.support.interrupting import StoppingProgress
from tests.support.models import save_tiny_model

POISON = b'{"text": "' + b"\xff\xfe\x00" * 1_700_000 + b'"}\n'
"""5 MB in one line that are no text."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("gpt2", tmp_path_factory.mktemp("models") / "gpt2")


@dataclass(frozen=True)
class Read:
    """What a build made of its corpus: how much, which stored tokens, and what it said."""

    totals: Totals
    token_counts: list[int]
    lines: list[str]


def config(model: Path, folder: Path, *corpus: str | Path, **options: object) -> BuildConfig:
    number = len(list(folder.glob("*store*")))
    given = {"model": str(model), "corpus": corpus, "out": folder / f"store{number}", "dims": 8}
    return BuildConfig(**{**given, **options})


def read(model: Path, folder: Path, *corpus: str | Path, **options: object) -> Read:
    """Builds up to where the model would run over the documents."""
    asked = config(model, folder, *corpus, **options)
    progress = StoppingProgress(before="Embedding")
    with pytest.raises(KeyboardInterrupt):
        build_here(asked, progress)
    (plan,) = folder.glob(f".{asked.out.name}.building/*/plans/documents.block")
    planned = Planned(plan, ())
    return Read(planned.totals(), planned.token_counts().tolist(), progress.lines)


def test_patterns_and_files_of_every_kind_are_read_together(model: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path / "b.jsonl")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "A text of its own."}) + "\n")
    (tmp_path / "[c].txt").write_text("A file that is called like a pattern.")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["In a table."]}), tmp_path / "d.parquet")
    corpus = (tmp_path / "*.jsonl", tmp_path / "[c].txt", (tmp_path / "d.parquet").as_uri())
    manifest = build_here(config(model, tmp_path, *corpus))
    assert [(file.name, file.documents) for file in manifest.corpus.files] == [
        ("a.jsonl", 1), ("b.jsonl", 4), ("[c].txt", 1), ("d.parquet", 1),
    ]  # fmt: skip


def test_equal_documents_are_stored_once_and_counted(model: Path, tmp_path: Path) -> None:
    once = read(model, tmp_path, write_corpus(tmp_path / "once.jsonl"))
    lines = (tmp_path / "once.jsonl").read_text()
    (tmp_path / "more.jsonl").write_text(lines + lines)
    thrice = read(model, tmp_path, tmp_path / "once.jsonl", tmp_path / "more.jsonl")
    assert thrice.token_counts == once.token_counts
    assert (once.totals.duplicates, thrice.totals.duplicates) == (0, 8)
    assert "8 documents left out: equal to one before" in thrice.lines


def test_pieces_of_equal_long_documents_are_stored_once(model: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    texts = ["ab" * 300, "ab" * 300, "ab" * 300 + "c"]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = read(model, tmp_path, corpus)
    # What the longer one has in common with the others is its own still.
    assert found.totals.entries == 599 + 600
    assert any(line.startswith("3 documents longer than the model's window") for line in found.lines)


def test_a_poison_document_is_left_out_and_told_with_its_line(model: Path, tmp_path: Path) -> None:
    clean = read(model, tmp_path, write_corpus(tmp_path / "corpus.jsonl"))
    first, *rest = (tmp_path / "corpus.jsonl").read_bytes().splitlines(keepends=True)
    poisoned = tmp_path / "poisoned.jsonl"
    poisoned.write_bytes(first + POISON + b"".join(rest))
    (tmp_path / "poison.txt").write_bytes(POISON)
    found = read(model, tmp_path, poisoned, tmp_path / "poison.txt")
    assert f"Left out: '{poisoned}', line 2: not UTF-8 text." in found.lines
    assert f"Left out: '{tmp_path / 'poison.txt'}': not UTF-8 text (byte 10)." in found.lines
    assert found.token_counts == clean.token_counts


def test_malformed_records_end_a_build_unless_they_are_to_be_skipped(model: Path, tmp_path: Path) -> None:
    clean = read(model, tmp_path, write_corpus(tmp_path / "corpus.jsonl"))
    malformed = tmp_path / "malformed.jsonl"
    bad = ['{"tex', '{"prompt": "without an answer"}', '{"text": 3}'] * 20
    malformed.write_text("\n".join([*bad, *(tmp_path / "corpus.jsonl").read_text().splitlines()]))
    with pytest.raises(BuildError, match=r"malformed.jsonl', line 1: not JSON .*--skip-bad"):
        build_here(config(model, tmp_path, malformed))
    found = read(model, tmp_path, malformed, skip_bad=True)
    assert found.token_counts == clean.token_counts
    assert sum(line.startswith("Left out: ") for line in found.lines) == 20
    assert "Left out in all: 60 records" in found.lines


def test_many_small_files_are_read_as_one_large_one(model: Path, tmp_path: Path) -> None:
    texts = [f"The text of file {number:04d}." for number in range(600)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number:04d}.txt").write_text(text)
    (tmp_path / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    small = read(model, tmp_path, tmp_path / "*.txt")
    assert small.totals == read(model, tmp_path, tmp_path / "all.jsonl").totals
    assert small.totals.documents == 600


def test_several_sampled_answers_are_asked_for_each_prompt(model: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    options = {"respond": True, "answers_per_prompt": 3, "temperature": 1.0, "max_new_tokens": 12}
    read(model, tmp_path, write_corpus(tmp_path / "corpus.jsonl"), answers_out=answers, **options)
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [line["prompt"] for line in lines] == [prompt for prompt, _ in QUESTIONS for _ in range(3)]
    assert len({tuple(line["response_ids"]) for line in lines}) > len(QUESTIONS)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("*.jsonl", "No file matches"),
        ("ftp://host/file.jsonl", "no store that is read"),
        ("s3://user:secret@bucket/file.jsonl", "holds a user or a password"),
        ("file:///nowhere/at/all.jsonl", "There is no file"),
    ],
)
def test_what_cannot_be_found_is_refused_at_the_start(name: str, complaint: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=complaint) as caught:
        build_here(config(model, tmp_path, name if "://" in name else tmp_path / name))
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
