"""dresd-retriever on a terminal: what it prints, and one clear sentence for everything that is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from retriever_service.building.ray_connection import connect
from retriever_service.cli import main
from retriever_service.datastore import read_manifest
from tests.support.building import start_retriever, write_corpus
from tests.support.datastore import build_datastore, random_entries
from tests.support.models import save_tiny_model


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[None]:
    """One Ray for all builds within this process."""
    with connect(None, 1):
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("gpt2", tmp_path_factory.mktemp("models") / "tiny gpt2")


def test_build_inspect_and_verify(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(tmp_path / "corpus.jsonl")
    (tmp_path / "model").symlink_to(model)
    # Relative paths, of a model in a folder with a space in its name.
    arguments = ["build", "--model", "model", "--corpus", "corpus.jsonl", "--out", "store", "--dims", "8"]
    with TemporaryDirectory(prefix="r") as ray_folder:
        process = start_retriever(*arguments, "--partitions", "2", "--json", cwd=tmp_path, ray_folder=Path(ray_folder))
        output, errors = process.communicate()
        assert [path.name for path in Path(ray_folder, "ray").iterdir()] == []
    assert process.returncode == 0, errors
    summary = json.loads(output)
    assert summary["documents"] == 4
    assert summary["partitions"] == 2
    assert summary["recall"] > 0.9
    # Nothing but what we say ourselves: no log of Ray, no warning of a library, no bar that is not on a terminal.
    stages = [re.sub(r"[\d,]+( of [\d,]+)?( \w+)( in .*)?", r"N\2", line) for line in errors.splitlines()]
    assert stages == [
        "Reading corpus.jsonl for model",
        "Reading: N bytes",
        "Reading done: N bytes",
        "Embedding: N tokens",
        "Embedding done: N tokens",
        "Shuffling: N entries",
        "Shuffling done: N entries",
        "Indexing: N parts",
        "Indexing done: N parts",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "model", "store"]

    store = str(tmp_path / "store")
    assert main(["inspect", store, "--json"]) == 0
    inspected = json.loads(capsys.readouterr().out)
    assert inspected["num_entries"] == summary["entries"]
    assert len(inspected["partitions"]) == 2
    assert main(["inspect", store]) == 0
    shown = capsys.readouterr().out
    assert summary["build_id"] in shown
    assert "corpus.jsonl: 4 documents" in shown
    assert shown.rstrip().endswith("--dims 8 --partitions 2 --json")
    assert main(["verify", store, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"] == summary["entries"]

    (tmp_path / "store" / "reducer.safetensors").write_bytes(b"no reducer")
    assert main(["verify", store]) == 1
    assert "reducer.safetensors" in one_sentence(capsys)


def test_the_manifest_tells_nothing_of_the_builders_folders(model: Path, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    corpus = write_corpus(tmp_path / "private" / "corpus.jsonl")
    paths = ["--model", model, "--corpus", corpus, f"--out={tmp_path / 'private' / 'store'}"]
    answers = ["--respond", "--answers-out", tmp_path / "private" / "answers.jsonl", "--max-new-tokens", "9"]
    process = start_retriever("build", *paths, *answers, "--dims", "4")
    assert process.wait() == 0, process.communicate()[1]
    manifest = read_manifest(tmp_path / "private" / "store")
    assert [file.name for file in manifest.corpus.files] == ["corpus.jsonl"]
    assert manifest.model.name == "tiny gpt2"
    assert manifest.command == (
        "dresd-retriever build --model 'tiny gpt2' --corpus corpus.jsonl --out=store "
        "--respond --answers-out answers.jsonl --max-new-tokens 9 --dims 4"
    )


def one_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """What an error printed, without what was said before: one line."""
    captured = capsys.readouterr()
    assert captured.out == ""
    told = ("Reading", "Answering", "Left out: ", "1 document skipped: ")
    errors = [line for line in captured.err.splitlines() if not line.startswith(told)]
    assert len(errors) == 1, captured.err
    assert errors[0].startswith("error: ")
    return errors[0]


def refused(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str], *, code: int = 1) -> str:
    """The sentence with which a build ends that leaves everything as it was."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert main(["build", *arguments]) == code
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    return one_sentence(capsys)


@pytest.mark.parametrize(
    ("content", "options", "complaint"),
    [
        (None, [], "corpus.jsonl"),
        ("", [], "holds no documents"),
        ('{"text": "a"}\n{"tex', [], "corpus.jsonl', line 2"),
        ('{"tex', ["--skip-bad"], "gives no entries"),
        ('{"prompt": "a"}', [], "line 1: the prompt has no answer"),
        ('{"text": "a"}', [], "gives no entries"),
        ('{"text": "abc"}', [], "gives 2 hidden states, but keys of 8 dimensions are fitted on at least 9"),
        ('{"prompt": "a"}', ["--respond", "--max-new-tokens", "8"], "1 prompt with answers of at most 8 tokens give 8"),
        ('{"text": "abc"}', ["--respond"], "a text is no prompt"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_refused(
    content: str | None,
    options: list[str],
    complaint: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    if content is not None:
        corpus.write_text(content)
    arguments = ["--model", str(model), "--corpus", str(corpus), "--out", str(tmp_path / "store"), "--dims", "8"]
    assert complaint in refused([*arguments, *options], tmp_path, capsys)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--dims", "33"], "hidden states have 32 dimensions"),
        (["--respond", "--answers-out", "nowhere/x.jsonl"], "no folder to write answers to"),
        (["--model", "./no/where"], "./no/where"),
        (["--ray-address", "127.0.0.1:1"], "Nothing answers at --ray-address 127.0.0.1:1"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(
    options: list[str], complaint: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    arguments = ["--model", str(model), "--corpus", str(corpus), "--out", str(tmp_path / "store"), "--dims", "8"]
    assert complaint in refused([*arguments, *options], tmp_path, capsys)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--dims", "0"], "--dims is 0"),
        (["--codec", "zip"], "no codec 'zip'"),
        (["--respond", "--temperature", "-1"], "--temperature is -1"),
        (["--max-new-tokens", "128"], "--max-new-tokens: only where the model answers"),
        (["--answers-per-prompt", "2"], "--answers-per-prompt: only where the model answers"),
        (["--engine", "abacus"], "no engine 'abacus'"),
        (["--respond", "--answers-per-prompt", "2"], "Greedy answers to one prompt are all the same"),
        (["--temperature", "0"], "--temperature: only where the model answers"),
        (["--answers-out", "x.jsonl"], "--answers-out: only where the model answers"),
    ],
)
def test_an_option_that_makes_no_sense_is_wrong_usage(
    options: list[str], complaint: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    arguments = ["--model", str(model), "--corpus", str(corpus), "--out", str(tmp_path / "store"), "--dims", "8"]
    assert complaint in refused([*arguments, *options], tmp_path, capsys, code=2)


def test_something_at_the_datastores_place_is_kept(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "precious").write_text("kept")
    arguments = ["--model", str(model), "--corpus", str(corpus), "--out", str(tmp_path / "store")]
    assert "already there" in refused(arguments, tmp_path, capsys)


@pytest.mark.parametrize("command", ["inspect", "verify", "serve"])
def test_a_folder_that_is_no_datastore_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--listen", "127.0.0.1:0"] if command == "serve" else []
    assert main([command, str(tmp_path), *arguments]) == 1
    assert "manifest" in capsys.readouterr().err


@pytest.mark.parametrize("partitions", ["7", "0,7"])
def test_a_partition_that_a_datastore_lacks_is_a_failure(
    partitions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = build_datastore(tmp_path / "store", random_entries(20), num_partitions=2).path
    assert main(["serve", str(store), "--listen", "127.0.0.1:0", "--partitions", partitions]) == 1
    assert "has the partitions 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["build"], ["unknown"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
