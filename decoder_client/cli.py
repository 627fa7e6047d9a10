"""dresd-decoder: the decoder's commands on a terminal.

Exit codes: 0 done, 1 failed (one sentence on stderr), 2 wrong usage. Knows commands by name only.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from decoder_client.commands import bench, generate
from decoder_client.errors import DecoderError
from decoder_client.retriever_errors import RetrieverError

_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class _Command:
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS = {
    "generate": _Command("answer one prompt", generate.add_arguments, generate.run),
    "bench": _Command("compare drafters on the prompts of a file", bench.add_arguments, bench.run),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="dresd-decoder", description="Decode with drafts from a dresd retriever.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(subparsers.add_parser(name, help=command.help, description=command.help.capitalize()))
    parsed = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="warning: %(message)s", force=True)
    try:
        return COMMANDS[parsed.command].run(parsed)
    except (DecoderError, RetrieverError) as error:
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
