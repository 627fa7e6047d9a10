"""Output that nobody takes: full disks, readers that left, closed descriptors, encodings without the characters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RETRIEVER = [sys.executable, "-m", "retriever_service.cli"]
DECODER = [sys.executable, "-m", "decoder_client.cli"]

# A command that prints what it is given, more than any buffer holds if that is asked.
TOOL = """
import sys
from dresd.command_line import Command, run_command
def run(arguments):
    print(arguments.text * arguments.times, flush=arguments.flush)
    print("said", file=sys.stderr)
    return 0
def options(parser):
    parser.add_argument("--text", default="text")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--flush", action="store_true")
sys.exit(run_command("tool", "A tool.", {"print": Command("print it", options, run)}, LookupError, None))
"""
PRINTING = [
    [sys.executable, *buffering, "-c", TOOL, "print", *options]
    for buffering in ([], ["-u"])
    for options in (["--times", "1"], ["--flush"], ["--times", "100000"])
]
COMMANDS = [*PRINTING, *([*cli, option] for cli in (RETRIEVER, DECODER) for option in ("--help", "--version"))]


def named(command: list[str]) -> str:
    return " ".join(part for part in command[1:] if part != TOOL)


def started(command: list[str], stdout: int, stderr: int = subprocess.PIPE, **environment: str) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    process = subprocess.run(
        command,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **environment},
        check=False,
    )
    return process.returncode, (process.stdout or b"").decode(), (process.stderr or b"").decode()


@pytest.mark.parametrize("command", COMMANDS, ids=named)
def test_a_full_disk_is_one_sentence(command: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        code, _, errors = started(command, full.fileno())
    sentences = [line for line in errors.splitlines() if line != "said"]
    assert (code, len(sentences)) == (1, 1), errors
    assert sentences[0].startswith("error: Cannot write the output: No space left on device. ")


@pytest.mark.parametrize("command", COMMANDS, ids=named)
def test_a_reader_that_left_is_no_complaint(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code, _, errors = started(command, writing)
    os.close(writing)
    assert code == 141
    assert errors in ("", "said\n")


@pytest.mark.parametrize("command", PRINTING, ids=named)
def test_errors_that_nobody_takes_change_nothing(command: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        code, output, _ = started(command, subprocess.PIPE, full.fileno())
    assert code == 0
    assert output.startswith("text")


def test_without_any_stream_a_command_still_runs_and_no_file_is_mistaken_for_one(tmp_path: Path) -> None:
    script = TOOL.replace("return 0", f"f = open({str(tmp_path / 'file')!r}, 'w'); print('text'); f.close(); return 0")
    closed = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-c", script, "print"]
    assert started(closed, subprocess.PIPE) == (0, "", "")
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_characters_that_the_terminal_lacks_are_escapes_as_in_json(environment: dict[str, str]) -> None:
    script = TOOL.replace("arguments.text *", "'\\xe4 \\u20ac \\U0001f600' *")
    code, output, errors = started([sys.executable, "-c", script, "print"], subprocess.PIPE, **environment)
    assert (code, errors) == (0, "said\n")
    assert output.isascii()
    assert json.loads(f'"{output.strip()}"') == "ä € \U0001f600"


@pytest.mark.parametrize("cli", [RETRIEVER, DECODER], ids=["retriever", "decoder"])
def test_bytes_that_are_no_text_are_one_sentence(cli: list[str]) -> None:
    for command, environment in (
        ([*cli, b"\xff"], {}),
        ([*cli, "ä".encode()], {"LC_ALL": "C", "PYTHONUTF8": "0"}),
    ):
        code, output, errors = started(command, subprocess.PIPE, **environment)
        assert (code, output, errors.count("\n")) == (2, "", 1)
        assert "is not text in this terminal's encoding" in errors
