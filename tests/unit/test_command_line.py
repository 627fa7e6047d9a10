"""How commands end: exit codes and one sentence on stderr."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from importlib import metadata

import pytest

from dresd.command_line import Command, UsageError, run_command


class FailedError(Exception):
    pass


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(_arguments: argparse.Namespace) -> int:
        raise error

    return run


def ended(run: Callable[[argparse.Namespace], int]) -> int:
    return run_command("tool", "A tool.", {"do": Command("do it", lambda _parser: None, run)}, FailedError, ["do"])


@pytest.mark.parametrize(
    ("run", "code", "sentence"),
    [
        (lambda _arguments: 0, 0, ""),
        (lambda _arguments: 7, 7, ""),
        (raising(FailedError("It is\nbroken. Mend it.")), 1, "error: It is broken. Mend it.\n"),
        (raising(KeyboardInterrupt()), 130, "stopped: Nothing was changed.\n"),
    ],
)
def test_the_exit_code_and_the_sentence(
    run: Callable[[argparse.Namespace], int], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(run) == code
    assert capsys.readouterr().err == sentence


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(raising(ModuleNotFoundError("No module named 'faiss.swig'", name="faiss.swig"))) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("error: tool do needs faiss.swig, which is not installed.")
    assert "dresd[server]" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("error", [ZeroDivisionError(), ModuleNotFoundError("x", name="decoder_client.nothing")])
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        ended(raising(error))


def test_wrong_usage_that_the_command_sees_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(raising(UsageError("They do not go together."))) == 2
    assert capsys.readouterr().err == "error: They do not go together.\n"


def test_an_argument_that_is_no_text_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    command = Command("do it", lambda parser: parser.add_argument("--name"), raising(AssertionError()))
    assert run_command("tool", "A tool.", {"do": command}, FailedError, ["do", "--name", "a\udcff"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(r"error: The argument 'a\udcff' is not text")
    assert errors.count("\n") == 1


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_command("tool", "A tool.", {}, FailedError, ["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"tool {metadata.version('dresd')}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_told_to_stop_cleans_up_undisturbed(number: signal.Signals) -> None:
    steps = []

    def run(_arguments: argparse.Namespace) -> int:
        try:
            signal.raise_signal(number)
        finally:
            # As a terminal that closes does, and an impatient supervisor.
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            steps.append("cleaned up")
        return 0

    outside = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests themselves run under nohup
    try:
        with pytest.raises(SystemExit) as caught:
            ended(run)
        assert caught.value.code == 128 + number
        assert steps == ["cleaned up"]
        assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)] == [signal.SIG_DFL] * 2
    finally:
        signal.signal(signal.SIGHUP, outside)


def test_a_closing_terminal_is_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        def run(_arguments: argparse.Namespace) -> int:
            signal.raise_signal(signal.SIGHUP)
            return 7

        assert ended(run) == 7
    finally:
        signal.signal(signal.SIGHUP, before)
