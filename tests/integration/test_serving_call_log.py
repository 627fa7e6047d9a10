"""What calls leave in the log: refusals with their request id, and nothing of what was sent."""

from __future__ import annotations

import base64
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.serving.access import Access
from retriever_service.serving.logs import JsonFormatter, TextFormatter
from tests.support.certificates import put
from tests.support.datastore import BuiltDatastore
from tests.support.serving import (
    DIMS,
    PATIENCE_S,
    GatedDatastore,
    OpenStream,
    local_config,
    request_for,
    serving,
)

TOKEN = "t0ken" * 7


@contextmanager
def logged(formatter: logging.Formatter, level: int = logging.INFO) -> Iterator[io.StringIO]:
    """What the server's process would write."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield written
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def lines_of(written: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def good(built: BuiltDatastore, **changes: object) -> pb.RetrieveRequest:
    return request_for(built.entries.keys[:1], built.entries.next_tokens[:1].tolist(), **changes)


def test_answers_leave_no_line(built: BuiltDatastore):
    with (
        serving(local_config(built.path)) as server,
        grpc.insecure_channel(server.address) as channel,
        OpenStream(server.address) as stream,
        logged(JsonFormatter()) as written,
    ):
        for number in range(5):
            pb_grpc.RetrieverStub(channel).Retrieve(good(built))
            stream.send(number, good(built))
            stream.receive()
        assert written.getvalue() == ""


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("trace-1/a:b", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("two words", False),
        ("", False),
        (None, False),
    ],
)
def test_a_refusal_bears_the_callers_request_id_or_one_of_ours(built: BuiltDatastore, sent: str | None, kept: bool):
    metadata = () if sent is None else (("x-request-id", sent),)
    with (
        serving(local_config(built.path)) as server,
        grpc.insecure_channel(server.address) as channel,
        logged(JsonFormatter()) as written,
    ):
        with pytest.raises(grpc.RpcError):
            pb_grpc.RetrieverStub(channel).Retrieve(good(built, max_nodes=0), metadata=metadata)
        with pytest.raises(grpc.RpcError):
            pb_grpc.RetrieverStub(channel).GetInfo(pb.GetInfoRequest(collection="absent"), metadata=metadata)
        list(
            pb_grpc.RetrieverStub(channel).RetrieveStream(
                iter([pb.RetrieveStreamRequest(request_id=1, request=good(built, build_id="another"))]),
                metadata=metadata,
            )
        )
    refusals = [line for line in lines_of(written) if line["message"] == "refused"]
    assert [line["code"] for line in refusals] == ["INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"]
    assert all(str(line["peer"]).startswith("ipv4:127.0.0.1:") for line in refusals)
    if kept:
        assert {line["request_id"] for line in refusals} == {sent}
    else:
        ids = {str(line["request_id"]) for line in refusals}
        assert len(ids) == 3
        assert sent not in ids


class Failing(GatedDatastore):
    def draft(self, *_: object, **__: object) -> object:
        raise RuntimeError("the index\nbroke")


def test_a_failure_has_its_traceback_and_the_request_it_belongs_to(built: BuiltDatastore):
    with (
        serving(local_config(built.path), lambda _: Failing(built.open())) as server,
        OpenStream(server.address) as stream,
        logged(JsonFormatter()) as written,
    ):
        stream.send(1, good(built))
        stream.receive()
    failed, refused = (line for line in lines_of(written) if line["level"] == "ERROR")
    assert "RuntimeError" in str(failed["exception"])
    assert refused["code"] == "INTERNAL"
    assert failed["request_id"] == refused["request_id"]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put(tmp_path_factory.mktemp("locked") / "tokens", TOKEN.encode())


bearers = st.sampled_from([TOKEN, "wr0ng" * 7, "wr0ng words and more"])
spoilt = st.sampled_from(
    [{}, {"max_nodes": 0}, {"num_queries": 2}, {"dims": DIMS + 1}, {"key_type": 9}, {"neighbors": 2**31},
     {"left_context_width": 3}, {"similarity_temperature": float("nan")}, {"collection": "absent"}]
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    st.binary(min_size=2 * DIMS, max_size=2 * DIMS),
    st.lists(st.integers(10**8, 2**31 - 1), min_size=1, max_size=3),
    st.lists(st.integers(10**8, 2**31 - 1), min_size=3, max_size=3),
    bearers,
    spoilt,
    st.booleans(),
)
def test_nothing_of_a_request_and_no_token_gets_into_the_log(
    built: BuiltDatastore,
    tokens: Path,
    keys: bytes,
    next_tokens: list[int],
    context: list[int],
    bearer: str,
    changes: dict[str, object],
    streamed: bool,
):
    left_contexts = np.array(context, "<i4").tobytes()
    request = good(built, **{"left_context_width": 3, "left_contexts": left_contexts, **changes})
    request.keys = keys
    request.next_tokens[:] = next_tokens
    metadata = (("authorization", f"Bearer {bearer}"),)
    with (
        logged(TextFormatter(), logging.DEBUG) as text,
        logged(JsonFormatter(), logging.DEBUG) as as_json,
        # A new one each time, because of repeated refusals only the first is logged.
        serving(local_config(built.path, access=Access(token_file=tokens))) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub = pb_grpc.RetrieverStub(channel)
        try:
            if streamed:
                requests = iter([pb.RetrieveStreamRequest(request_id=1, request=request)])
                list(stub.RetrieveStream(requests, metadata=metadata, timeout=PATIENCE_S))
            else:
                stub.Retrieve(request, metadata=metadata, timeout=PATIENCE_S)
        except grpc.RpcError:
            pass
        said = text.getvalue() + as_json.getvalue()
    assert bearer == TOKEN or "UNAUTHENTICATED" in said
    for secret in (TOKEN, "wr0ng", *map(str, next_tokens), *map(str, context)):
        assert secret not in said
    for form in (keys.hex(), base64.b64encode(keys).decode(), repr(keys), repr(left_contexts), left_contexts.hex()):
        assert form not in said
