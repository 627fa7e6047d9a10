"""What the server's process logs, and what it does not. Knows logging and one habit of gRPC's."""

from __future__ import annotations

import logging
import sys

import grpc.aio

logger = logging.getLogger(__name__)

_GRPC_LOGGER = "grpc._cython.cygrpc"


def set_up() -> None:
    """Logs to stderr, for a process that is a server and nothing else."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger(_GRPC_LOGGER).addFilter(_is_no_departure)


def _is_no_departure(record: logging.LogRecord) -> bool:
    """False for a caller that left before it had read its answers: nothing is wrong then.

    gRPC means to pass over it, but logs a traceback when the failed write is known before the caller's end is.
    """
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, grpc.aio.InternalError):
        return True
    logger.debug("a caller left before it had read its answers: %s", error)
    return False
