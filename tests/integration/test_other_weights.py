"""--allow-other-weights: every command that drafts refuses a datastore of other weights, and takes it when told to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from decoder_client.cli import main
from tests.support.evaluation import TinyWorld
from tests.support.models import save_tiny_model
from tests.support.serving import local_config, serving


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokenizer and sizes, other weights."""
    return save_tiny_model("llama", tmp_path_factory.mktemp("models") / "other", seed=5)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRESD_CACHE", str(tmp_path / "cache"))


def _prompts(folder: Path) -> str:
    file = folder / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "hello"}) + "\n", "utf-8")
    return str(file)


COMMANDS: dict[str, Callable[[TinyWorld, Path], list[str]]] = {
    "generate": lambda _world, _folder: ["generate", "--prompt", "hello", "--max-new-tokens", "8", "--nodes", "4"],
    "bench": lambda _world, folder: [
        "bench", "--prompts", _prompts(folder), "--methods", "plain,dresd", "--nodes", "4", "--max-new-tokens", "8",
    ],
    "replay": lambda world, _folder: ["replay", "--traces", str(world.traces), "--methods", "dresd", "--nodes", "4"],
}  # fmt: skip


CASES = [(command, "service") for command in COMMANDS] + [("bench", "datastore"), ("replay", "datastore")]


@pytest.mark.parametrize(("command", "source"), CASES)
def test_other_weights_are_taken_only_when_told_to(
    world: TinyWorld,
    other_model: Path,
    command: str,
    source: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [*COMMANDS[command](world, tmp_path), "--model", str(other_model)]

    def refused_then_taken(*drafts_from: str) -> None:
        assert main([*arguments, *drafts_from]) == 1
        captured = capsys.readouterr()
        assert "weights_fingerprint" in captured.err
        assert "--allow-other-weights" in captured.err
        assert main([*arguments, *drafts_from, "--allow-other-weights"]) == 0

    if source == "datastore":
        refused_then_taken("--datastore", str(world.datastore))
        return
    with serving(local_config(world.datastore)) as server:
        refused_then_taken("--retriever", server.address, "--deadline-ms", "60000")


def test_another_size_is_refused_all_the_same(
    world: TinyWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    larger = save_tiny_model("llama", tmp_path / "larger", hidden_size=64)
    arguments = [*COMMANDS["replay"](world, tmp_path), "--model", str(larger), "--datastore", str(world.datastore)]
    assert main([*arguments, "--allow-other-weights"]) == 1
    errors = capsys.readouterr().err
    assert "hidden_size" in errors
    assert "accept it with" not in errors
