"""Lines of the server's log."""

from __future__ import annotations

import json
import logging

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever_service.serving.call_log import RefusalLog
from retriever_service.serving.logs import JsonFormatter, TextFormatter

anything = st.text(max_size=40)
values = st.one_of(anything, st.integers(), st.booleans(), st.none())
names = st.sampled_from(["build", "code", "reason"])


def record_of(message: str, fields: dict[str, object], *arguments: object) -> logging.LogRecord:
    record = logging.LogRecord("dresd", logging.WARNING, "file.py", 1, message, arguments, None)
    record.fields = fields
    return record


@given(anything, st.dictionaries(names, values))
def test_whatever_is_said_is_one_line(message: str, fields: dict[str, object]):
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record_of("%s", fields, message))
        assert len(line.splitlines()) == 1
        assert line.isprintable()


@given(anything, st.dictionaries(names, values))
def test_json_says_it_all(message: str, fields: dict[str, object]):
    said = json.loads(JsonFormatter().format(record_of("%s", fields, message)))
    assert said["message"] == message
    assert (said["level"], said["logger"]) == ("WARNING", "dresd")
    assert {name: said[name] for name in fields} == fields


@given(anything)
def test_no_line_of_a_traceback_can_be_taken_for_an_event(message: str):
    with pytest.raises(ValueError) as caught:
        raise ValueError(message)
    record = record_of("it failed", {})
    record.exc_info = (caught.type, caught.value, caught.tb)
    first, *further = TextFormatter().format(record).split("\n")
    assert "it failed" in first
    assert further
    assert all(line.startswith("    ") and line.isprintable() for line in further)
    assert "ValueError" in json.loads(JsonFormatter().format(record))["exception"]


def test_a_flood_of_refusals_is_a_line_a_second_for_each_status(caplog: pytest.LogCaptureFixture):
    now = 100.0
    log = RefusalLog(logging.getLogger("flood"), lambda: now)
    with caplog.at_level(logging.INFO, "flood"):
        for _ in range(1000):
            log.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        log.refused(grpc.StatusCode.INTERNAL, "broken")
        now += 1.5
        log.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
    said = [(record.levelname, record.fields["code"], record.fields["more_unlogged"]) for record in caplog.records]
    assert said == [
        ("WARNING", "RESOURCE_EXHAUSTED", 0),
        ("ERROR", "INTERNAL", 0),
        ("WARNING", "RESOURCE_EXHAUSTED", 999),
    ]
