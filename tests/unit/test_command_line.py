"""How commands end: exit codes and one sentence on stderr."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from dresd.command_line import Command, run_command


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
        (raising(KeyboardInterrupt()), 130, ""),
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
