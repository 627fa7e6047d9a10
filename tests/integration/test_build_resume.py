"""A build that was stopped goes on, whatever is there, and ends with the very files of one that never was."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from retriever_service.building.config import BuildConfig
from retriever_service.building.errors import BuildError
from retriever_service.building.job import build
from retriever_service.building.progress import NoProgress
from retriever_service.datastore import Datastore, DatastoreError
from tests.support.building import write_corpus
from tests.support.in_process_jobs import build_here
from tests.support.interrupting import StoppingProgress, contents, flip_a_byte
from tests.support.models import save_tiny_model


@dataclass(frozen=True)
class Built:
    """A build, what it makes undisturbed, and what it leaves when it is stopped at the end."""

    config: BuildConfig
    contents: dict[str, object]
    work: Path

    def at(self, folder: Path) -> BuildConfig:
        """The same build of another datastore, which was stopped at the end, too."""
        shutil.copytree(self.work, folder / ".store.building")
        return replace(self.config, out=folder / "store")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    config = BuildConfig(
        model=str(save_tiny_model("gpt2", folder / "gpt2")),
        corpus=(write_corpus(folder / "corpus.jsonl", times=60),),
        out=folder / "store",
        dims=8,
        partitions=3,
        fit_tokens=3000,
    )
    work = folder / "work"
    build_here(
        config, StoppingProgress(behind="Indexing", instead=lambda: shutil.copytree(folder / ".store.building", work))
    )
    return Built(config, contents(config.out), work)


def blocks_of(folder: Path, stage: str) -> list[Path]:
    return sorted(folder.glob(f".store.building/*/{stage}"))


def test_what_a_stopped_build_leaves_is_no_datastore(built: Built) -> None:
    for folder in (built.work, *built.work.rglob("datastore")):
        with pytest.raises(DatastoreError, match="manifest"):
            Datastore.open(folder)


def test_a_stopped_build_goes_on(built: Built, tmp_path: Path) -> None:
    # With two workers of Ray: neither their number nor where they are is anything that the result depends on.
    config = replace(built.config, out=tmp_path / "store", workers=2, threads=1)
    stopped = StoppingProgress(before="Shuffling")
    with pytest.raises(KeyboardInterrupt):
        build(config, stopped)
    assert stopped.lines[-1].startswith("What was done is kept in ")
    assert [path.name for path in tmp_path.iterdir()] == [".store.building"]
    going_on = StoppingProgress()
    build_here(config, going_on)
    assert "Going on with the work of an interrupted build" in going_on.lines
    assert contents(config.out) == built.contents
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_nothing_that_is_there_is_made_again(built: Built, tmp_path: Path) -> None:
    config = built.at(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.block")}
    with pytest.raises(KeyboardInterrupt):
        build_here(config, StoppingProgress(behind="Indexing"))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.block")} == before


@pytest.mark.parametrize(
    ("damaged", "how"),
    [
        ("embedded/block-000000.block", "flipped"),
        ("embedded/block-00000[1-9].block", "missing"),
        *product(
            [
                "ingest/*.block",
                "plans/*.block",
                "fit/*.block",
                "shuffled/*.block",
                "records/partition-00001.block",
                "records/token-table.block",
                "datastore/partition-00002*/index.faiss",
                "datastore/partition-00000*/directory.safetensors",
                "datastore/token_table.safetensors",
            ],
            ["flipped", "missing"],
        ),
    ],
)
def test_whatever_is_damaged_or_missing_is_made_anew(damaged: str, how: str, built: Built, tmp_path: Path) -> None:
    config = built.at(tmp_path)
    paths = blocks_of(tmp_path, damaged)
    assert paths
    for path in paths:
        flip_a_byte(path) if how == "flipped" else path.unlink()
    told = StoppingProgress()
    build_here(config, told)
    assert contents(config.out) == built.contents
    assert sum("damaged in" in line for line in told.lines) == (how == "flipped" and damaged.endswith(".block"))


def test_left_overs_of_killed_tasks_are_removed(built: Built, tmp_path: Path) -> None:
    config = built.at(tmp_path)
    (job,) = (path for path in (tmp_path / ".store.building").iterdir() if path.is_dir())
    (job / "embedded" / ".block-000001.block.abc.partial").write_bytes(b"half")
    (job / "attempts" / "abc" / "partition-00000-segment-000").mkdir(parents=True)
    (job / "attempts" / "abc" / "partition-00000-segment-000" / "index.faiss").write_bytes(b"half")
    build_here(config)
    assert contents(config.out) == built.contents


def other_options(config: BuildConfig) -> BuildConfig:
    return replace(config, dims=9)


def other_corpus(config: BuildConfig) -> BuildConfig:
    corpus = config.out.parent / "corpus.jsonl"
    content = Path(config.corpus[0]).read_bytes()
    corpus.write_bytes(content.replace(b"reverse", b"inverse", 1))
    return replace(config, corpus=(corpus,))


def other_model(config: BuildConfig) -> BuildConfig:
    return replace(config, model=str(save_tiny_model("gpt2", config.out.parent / "gpt2", seed=1)))


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (other_options, "its --dims was 8, and is 9 now"),
        (other_corpus, "its corpus was another"),
        (other_model, "its model was"),
    ],
)
def test_another_job_is_refused_until_it_is_to_begin_anew(
    change: object, difference: str, built: Built, tmp_path: Path
) -> None:
    assert callable(change)
    changed = change(built.at(tmp_path))
    before = {path: path.read_bytes() for path in (tmp_path / ".store.building").rglob("*.block")}
    refused = StoppingProgress()
    with pytest.raises(BuildError, match=rf"{difference}.*--restart"):
        build_here(changed, refused)
    assert not any("goes on with it" in line for line in refused.lines)  # that is another command's work
    assert {path: path.read_bytes() for path in (tmp_path / ".store.building").rglob("*.block")} == before
    with pytest.raises(KeyboardInterrupt):
        build_here(replace(changed, restart=True), StoppingProgress(before="Embedding"))
    assert not blocks_of(tmp_path, "embedded/*.block")


def test_a_moved_corpus_and_model_of_the_same_content_are_the_same_job(built: Built, tmp_path: Path) -> None:
    config = built.at(tmp_path)
    shutil.copytree(config.model, tmp_path / "elsewhere" / "gpt2")
    shutil.copy(config.corpus[0], tmp_path / "elsewhere" / "corpus.jsonl")
    moved = replace(
        config,
        model=str(tmp_path / "elsewhere" / "gpt2"),
        corpus=(tmp_path / "elsewhere" / "corpus.jsonl",),
    )
    build_here(moved, NoProgress())
    assert contents(config.out) == built.contents


def test_answers_are_not_asked_for_again(built: Built, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    options = {"respond": True, "max_new_tokens": 6, "temperature": 1.0, "answers_per_prompt": 2}
    config = replace(built.config, out=tmp_path / "store", answers_out=answers, **options)
    with pytest.raises(KeyboardInterrupt):
        build_here(config, StoppingProgress(behind="Answering"))
    assert not answers.exists()
    answered = {path: path.stat().st_mtime_ns for path in blocks_of(tmp_path, "answers/*.block")}
    assert answered
    with pytest.raises(KeyboardInterrupt):
        build_here(config, StoppingProgress(before="Embedding"))
    assert {path: path.stat().st_mtime_ns for path in answered} == answered
    first = answers.read_bytes()
    # One of them is lost, and given again.
    next(iter(answered)).unlink()
    with pytest.raises(KeyboardInterrupt):
        build_here(config, StoppingProgress(before="Embedding"))
    assert answers.read_bytes() == first
