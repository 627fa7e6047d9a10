"""dresd-retriever: the service's commands on a terminal.

Exit codes: 0 done, 1 failed (one sentence on stderr), 2 wrong usage. Knows commands by name only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retriever_service.commands import build, inspect, serve, verify
from retriever_service.commands.output import CommandError

_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class _Command:
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


_COMMANDS = {
    "build": _Command("build a datastore from a corpus and a model", build.add_arguments, build.run),
    "serve": _Command("serve a datastore over gRPC", serve.add_arguments, serve.run),
    "inspect": _Command("show what a datastore consists of", inspect.add_arguments, inspect.run),
    "verify": _Command("check every byte and count of a datastore", verify.add_arguments, verify.run),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="dresd-retriever", description="Build and serve a datastore of drafts.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        command.add_arguments(subparsers.add_parser(name, help=command.help, description=command.help.capitalize()))
    parsed = parser.parse_args(arguments)
    try:
        return _COMMANDS[parsed.command].run(parsed)
    except CommandError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; flushing at exit would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
