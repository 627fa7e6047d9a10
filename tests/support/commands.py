"""The retriever's commands as processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path

# A shell that starts the tests in the background makes them, and so their children, ignore interrupts; nohup does so
# with a closing terminal. Set here and not before the program begins: then the process would be forked with gRPC's
# threads in it, and now and then dies of them.
_HEARING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from retriever_service.cli import main
sys.exit(main())
"""


def retriever_command(*arguments: str | Path) -> list[str]:
    """The command line of a `dresd-retriever` that hears signals, in this interpreter."""
    return [sys.executable, "-c", _HEARING, *map(str, arguments)]
