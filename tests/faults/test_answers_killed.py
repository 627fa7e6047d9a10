"""A build that is killed while it answers prompts: what it leaves beside the file of answers, the next one removes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retriever_service.building.answers import reserved

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys
from pathlib import Path
from retriever_service.building.answers import reserved

with reserved(Path(sys.argv[1]), corpus=[], datastore=Path(sys.argv[2])):
    print("reserved", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(answers: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has reserved the place of the answers, until it is killed or left."""
    command = [sys.executable, "-c", HOLD, str(answers), str(answers.parent / "store")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reserved\n"
        yield process


def write(answers: Path) -> None:
    with reserved(answers, corpus=[], datastore=answers.parent / "store") as file:
        file.write(["{}"])


@pytest.mark.parametrize("name", ["answers.jsonl", "[a-z]* ?.jsonl", "line\nbreak"])
def test_what_a_killed_build_left_is_removed(name: str, tmp_path: Path) -> None:
    answers = tmp_path / name
    with holding(answers) as process:
        process.kill()
    (left_over,) = tmp_path.iterdir()
    assert left_over.name.startswith(f".{name}.")
    write(answers)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_a_running_build_uses_stays(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    with holding(answers) as process:
        (used,) = tmp_path.iterdir()
        write(answers)
        assert used.exists()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["answers.jsonl"]


@pytest.mark.parametrize(
    "name",
    [
        ".answers.jsonl.partial", ".answers.jsonl.x.partial", ".answers.jsonl.1.partial.old",
        "answers.jsonl.1.partial", ".other.jsonl.1.partial", ".answers.jsonl.bak.1.partial",
    ],
)  # fmt: skip
def test_what_only_looks_like_it_stays(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("precious")
    write(tmp_path / "answers.jsonl")
    assert (tmp_path / name).read_text() == "precious"


def test_links_and_pipes_of_that_name_stay(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".answers.jsonl.1.partial").symlink_to("precious")
    (tmp_path / ".answers.jsonl.2.partial").mkdir()
    before = sorted(tmp_path.iterdir())
    write(tmp_path / "answers.jsonl")
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "answers.jsonl"])
