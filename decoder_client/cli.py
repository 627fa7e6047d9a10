"""dresd-decoder: the decoder's commands on a terminal.

Knows commands by name only; torch and transformers are imported when one runs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from decoder_client.commands import bench, generate, replay
from decoder_client.errors import DecoderError
from dresd.command_line import Command, run_command

_NO_RESULTS = "No results were written."

COMMANDS = {
    "generate": Command("answer one prompt", generate.add_arguments, generate.run, "The answer is not whole."),
    "bench": Command("compare drafters on the prompts of a file", bench.add_arguments, bench.run, _NO_RESULTS),
    "replay": Command(
        "compare drafters on known answers, without decoding", replay.add_arguments, replay.run, _NO_RESULTS
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="warning: %(message)s", force=True)
    if sys.stderr.isatty():
        _show_what_takes_long()
    # It prints by itself, too.
    logging.getLogger("huggingface_hub").propagate = False
    description = "Decode with drafts from a dresd retriever."
    return run_command("dresd-decoder", description, COMMANDS, DecoderError, arguments)


def _show_what_takes_long() -> None:
    """Says on the terminal why nothing happens for some seconds."""
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(logging.Formatter("%(message)s"))
    measuring = logging.getLogger("decoder_client.pass_cost")
    measuring.setLevel(logging.INFO)
    measuring.handlers = [shown]
    measuring.propagate = False


if __name__ == "__main__":
    sys.exit(main())
