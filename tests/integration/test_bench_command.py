"""dresd-decoder bench with a tiny model: prompt files, methods, results on disk, and bad usage."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from decoder_client.cli import main
from tests.support.models import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "model"
    save_tiny_model("llama", folder)
    return folder


def prompts(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def bench(model: Path, file: Path, *options: str) -> int:
    required = ["--model", str(model), "--prompts", str(file), "--max-new-tokens", "12", "--methods", "plain"]
    return main(["bench", *required, *options])


def test_all_kinds_of_prompts_are_decoded_and_recorded(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = prompts(
        tmp_path,
        {"prompt": "hello hello hello", "family": "greeting"},
        "",
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "an answer not to decode"}]},
        {"prompt_ids": [5, 6, 5, 6, 5], "name": "ids"},
    )
    out = tmp_path / "results.json"
    assert bench(model, file, "--methods", "plain,prompt-lookup", "--nodes", "4,8", "--json", str(out)) == 0
    printed = capsys.readouterr().out
    for name in ("greeting:1", "prompt:3", "ids:4", "prompt-lookup@4", "prompt-lookup@8"):
        assert name in printed
    record = json.loads(out.read_text(encoding="utf-8"))
    assert len(record["measurements"]) == 3 * 3
    assert all(one["difference"] is None for one in record["measurements"])
    assert [summary["identical"] for summary in record["summaries"]] == [3, 3, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.jsonl", "results.json"]


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "No prompts"),
        (["{"], "Line 1 .* not JSON"),
        ([{"prompt": "fine"}, "[1]"], "Line 2 .* not a record"),
        ([{"prompt": "fine"}, {"text": "no prompt"}], "Line 2 .* holds none of"),
        ([{"prompt_ids": [1, -1]}], "Line 1 .* token ids"),
        ([{"prompt_ids": [10**9]}], "Line 1 .* token ids"),
        ([{"prompt_ids": ["a"]}], "Line 1 .* token ids"),
        ([{"messages": [{"role": "user"}]}], "Line 1 .* role and content"),
        ([{"messages": ["hi"]}], "Line 1 .* role and content"),
    ],
)
def test_a_bad_prompt_file_is_one_sentence(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[object], complaint: str
) -> None:
    assert bench(model, prompts(tmp_path, *lines)) == 1
    errors = capsys.readouterr().err
    assert re.search(complaint, errors), errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--methods", "plain,magic"], "Unknown method 'magic'"),
        (["--methods", "dresd"], "dresd needs a retriever"),
        (["--nodes", "8,x"], "whole numbers"),
        (["--nodes", "0"], "1..1024"),
        (["--json", "nowhere/results.json"], "Cannot write"),
        (["--methods", "plain", "--retriever", "127.0.0.1:1", "--methods", "dense"], "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_measured_is_said_before_measuring(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], complaint: str
) -> None:
    assert bench(model, prompts(tmp_path, {"prompt": "hello"}), *options) == 1
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert "tok/fwd" not in captured.out


def test_a_missing_prompt_file_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(model, tmp_path / "none.jsonl") == 1
    assert "none.jsonl" in capsys.readouterr().err
