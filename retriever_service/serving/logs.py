"""How the server's process logs: one line an event, as text or as JSON, and what it does not log.

A line has the request id and the peer of the call it belongs to. Knows logging and one habit of gRPC's.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

import grpc.aio

from retriever_service.echo import printable
from retriever_service.serving.call_log import current_call

logger = logging.getLogger(__name__)

_OF_ALL: dict[str, object] = {}
"""Fields of every line of this process."""

GRPC_LOGGER = "grpc._cython.cygrpc"
"""Whose habit is filtered by `is_no_departure`."""


def set_up(log_format: str) -> None:
    """Logs to stderr, for a process that is a server and nothing else; `log_format` is that of a `ServeConfig`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger(GRPC_LOGGER).addFilter(is_no_departure)


def name_worker(number: int) -> None:
    """From now on every line of this process tells which worker it is."""
    _OF_ALL["worker"] = number


class TextFormatter(logging.Formatter):
    """Time, level, logger, message, then name=value for each field; what further lines there are is indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, with a traceback's lines indented below it."""
        fields = " ".join(f"{name}={_word(value)}" for name, value in _fields_of(record).items())
        line = f"{_time_of(record)} {record.levelname} {record.name} {printable(record.getMessage())} {fields}"
        traceback = "".join(f"\n    {printable(part)}" for part in _traceback_of(self, record).splitlines())
        return line.rstrip() + traceback


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the event's fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        said = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields_of(record),
        }
        if traceback := _traceback_of(self, record):
            said["exception"] = traceback
        return json.dumps(said, default=str)


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    """What the event said beside its message (`extra={"fields": ...}`), and the call it belongs to."""
    fields = {**_OF_ALL, **getattr(record, "fields", {})}
    call = current_call.get()
    if call is not None:
        fields.update(request_id=call.request_id, peer=call.peer)
    return fields


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")


def _traceback_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] is not None else ""


def _word(value: object) -> str:
    text = printable(str(value))
    return text if text and not set(text) & set(' "=') else json.dumps(text, ensure_ascii=False)


def is_no_departure(record: logging.LogRecord) -> bool:
    """False for a caller that left before it had read its answers: nothing is wrong then.

    gRPC means to pass over it, but logs a traceback when the failed write is known before the caller's end is.
    """
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, grpc.aio.InternalError):
        return True
    logger.debug("a caller left before it had read its answers: %s", error)
    return False
