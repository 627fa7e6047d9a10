"""How the project's commands behave on a terminal: one program, several commands, one way to fail.

Exit codes: 0 done, 1 failed (one sentence on stderr), 2 wrong usage, 128 + n stopped by signal n: 129 for a closed
terminal, 130 for an interrupt, 141 where the reader of the output left, 143 for a termination. Knows commands by name
only.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from types import FrameType

from dresd.standard_streams import OutputError, drop_output, guarded_streams

_INTERRUPTED = 128 + signal.SIGINT
_NOBODY_READS = 128 + signal.SIGPIPE
_OURS = {"dresd", "retriever_service", "decoder_client"}
_SHOWN_CHARACTERS = 60
_UNCHANGED = "Nothing was changed."


class UsageError(Exception):
    """The command line makes no sense in a way that argparse cannot see: one sentence, exit code 2."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        help: what it is for.
        add_arguments: declares its options.
        run: does it; returns the exit code.
        stopped: what an interrupt leaves behind, and how to go on: one sentence.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    stopped: str = _UNCHANGED


def run_command(
    program: str,
    description: str,
    commands: Mapping[str, Command],
    failures: type[Exception],
    arguments: Sequence[str] | None,
) -> int:
    """Parses the command line, runs the command it names and returns the exit code.

    A command that is told to stop (SIGTERM, SIGHUP) leaves by SystemExit, so that it cleans up on its way out.

    Args:
        program: its name, for usage messages.
        description: one sentence about it.
        commands: by name.
        failures: exceptions that carry a sentence for the user; others are bugs and leave their traceback.
        arguments: after the program's name; None takes those of this process.
    """
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--version", action="version", version=f"{program} {_version()}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in commands.items():
        description = command.help[:1].upper() + command.help[1:]
        command.add_arguments(subparsers.add_parser(name, help=command.help, description=description))
    try:
        with guarded_streams(), _leaving_when_told_to():
            return _run(parser, commands, failures, sys.argv[1:] if arguments is None else arguments)
    except OutputError as error:
        drop_output()
        if isinstance(error.__cause__, BrokenPipeError):
            return _NOBODY_READS
        reason = getattr(error.__cause__, "strerror", None) or error.__cause__
        with guarded_streams():
            _say(f"Cannot write the output: {reason}. Send it to a file on a disk with space, or to a terminal.")
        return 1


def _run(
    parser: argparse.ArgumentParser,
    commands: Mapping[str, Command],
    failures: type[Exception],
    arguments: Sequence[str],
) -> int:
    stopped = _UNCHANGED
    try:
        _check_text(arguments)
        parsed = _parse(parser, arguments)
        stopped = commands[parsed.command].stopped
        return commands[parsed.command].run(parsed)
    except failures as error:
        _say(str(error))
        return 1
    except UsageError as error:
        _say(str(error))
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in _OURS:
            raise
        _say(
            f"{parser.prog} {parsed.command} needs {error.name}, which is not installed. "
            'Install dresd with the extra for it: "dresd[client]" decodes, "dresd[server]" serves, '
            '"dresd[server,remote]" fetches and pushes, "dresd[build,server]" builds.'
        )
        return 1
    except KeyboardInterrupt:
        print(f"stopped: {stopped}", file=sys.stderr)
        return _INTERRUPTED


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    try:
        return parser.parse_args(arguments)
    except SystemExit:
        sys.stdout.flush()  # of --help and --version: here a full disk can still be told
        raise


def _check_text(arguments: Sequence[str]) -> None:
    for argument in arguments:
        # Bytes that are no text in the terminal's encoding arrive as lone surrogates.
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise UsageError(
                f"The argument {argument[:_SHOWN_CHARACTERS]!a} is not text in this terminal's encoding "
                f"({sys.getfilesystemencoding()}). Use UTF-8 for texts and file names, and a UTF-8 locale such as "
                "LC_ALL=C.UTF-8."
            )


@contextmanager
def _leaving_when_told_to() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP (a terminal that closed) a SystemExit, unless they are ignored, as under nohup."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heard = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]

    def leave(number: int, _frame: FrameType | None) -> None:
        for other in heard:
            signal.signal(other, signal.SIG_IGN)  # a closing terminal says so several times; we are cleaning up
        raise SystemExit(128 + number)

    try:
        for number in heard:
            signal.signal(number, leave)
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _say(sentence: str) -> None:
    print(f"error: {' '.join(sentence.split())}", file=sys.stderr)


def _version() -> str:
    try:
        return metadata.version("dresd")
    except metadata.PackageNotFoundError:
        return "(not installed)"
