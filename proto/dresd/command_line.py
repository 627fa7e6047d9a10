"""How the project's commands behave on a terminal: one program, several commands, one way to fail.

Exit codes: 0 done, 1 failed (one sentence on stderr), 2 wrong usage, 130 interrupted. Knows commands by name only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_INTERRUPTED = 130
_OURS = {"dresd", "retriever_service", "decoder_client"}


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what it is for, its options, and what it does (returning the exit code)."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def run_command(
    program: str,
    description: str,
    commands: Mapping[str, Command],
    failures: type[Exception],
    arguments: Sequence[str] | None,
) -> int:
    """Parses the command line, runs the command it names and returns the exit code.

    Args:
        program: its name, for usage messages.
        description: one sentence about it.
        commands: by name.
        failures: exceptions that carry a sentence for the user; others are bugs and leave their traceback.
        arguments: after the program's name; None takes those of this process.
    """
    parser = argparse.ArgumentParser(prog=program, description=description)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in commands.items():
        command.add_arguments(subparsers.add_parser(name, help=command.help, description=command.help.capitalize()))
    parsed = parser.parse_args(arguments)
    try:
        return commands[parsed.command].run(parsed)
    except failures as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in _OURS:
            raise
        print(
            f"error: {program} {parsed.command} needs {error.name}, which is not installed. "
            'Install dresd with the extra for it: "dresd[client]" decodes, "dresd[server]" serves, '
            '"dresd[build,server]" builds.',
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; flushing at exit would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
