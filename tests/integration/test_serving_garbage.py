"""Bytes that no client sends: always one of the documented statuses, never a traceback, and the service goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.serving.logs import GRPC_LOGGER, is_no_departure
from tests.support.datastore import BuiltDatastore
from tests.support.serving import PATIENCE_S, local_config, request_for, serving

UNARY = ["GetInfo", "GetReducer", "Retrieve"]
REFUSALS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}
NO_MESSAGE = b"\xff\xff\xff"


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.tracebacks: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and (record.name != GRPC_LOGGER or is_no_departure(record)):
            self.tracebacks.append(record)


@pytest.fixture(scope="module")
def channel(built: BuiltDatastore) -> Iterator[grpc.Channel]:
    records = Records()
    logging.getLogger().addHandler(records)
    with serving(local_config(built.path)) as server, grpc.insecure_channel(server.address) as channel:
        yield channel
    logging.getLogger().removeHandler(records)
    assert records.tracebacks == []


def good(built: BuiltDatastore) -> pb.RetrieveRequest:
    return request_for(built.entries.keys[:2], built.entries.next_tokens[:2].tolist())


def assert_it_goes_on(built: BuiltDatastore, channel: grpc.Channel) -> None:
    assert len(pb_grpc.RetrieverStub(channel).Retrieve(good(built), timeout=PATIENCE_S).trees) == 2


def unary(channel: grpc.Channel, method: str, message: bytes) -> grpc.StatusCode:
    try:
        channel.unary_unary(f"/dresd.v1.Retriever/{method}")(message, timeout=PATIENCE_S)
    except grpc.RpcError as refused:
        return refused.code()
    return grpc.StatusCode.OK


def streamed(channel: grpc.Channel, messages: list[bytes]) -> tuple[list[bytes], grpc.RpcError | None]:
    answers: list[bytes] = []
    try:
        answers.extend(channel.stream_stream("/dresd.v1.Retriever/RetrieveStream")(iter(messages), timeout=PATIENCE_S))
    except grpc.RpcError as ended:
        return answers, ended
    return answers, None


@st.composite
def nearly_good(draw: st.DrawFn, message: bytes) -> bytes:
    """A message with some of its bytes changed, and perhaps its end missing."""
    content = bytearray(message)
    for at in draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[at] = draw(st.integers(0, 255))
    return bytes(content[: draw(st.integers(0, len(content)))]) if draw(st.booleans()) else bytes(content)


@pytest.mark.parametrize("method", UNARY)
def test_no_message_is_an_invalid_argument(built: BuiltDatastore, channel: grpc.Channel, method: str):
    assert unary(channel, method, NO_MESSAGE) is grpc.StatusCode.INVALID_ARGUMENT
    assert_it_goes_on(built, channel)


def test_no_message_ends_its_stream_and_no_other(built: BuiltDatastore, channel: grpc.Channel):
    message = pb.RetrieveStreamRequest(request_id=7, request=good(built)).SerializeToString()
    _, ended = streamed(channel, [message, NO_MESSAGE, message])
    assert ended is not None
    assert ended.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not a message" in ended.details()
    answers, ended = streamed(channel, [message])
    assert (len(answers), ended) == (1, None)


@pytest.mark.parametrize("method", UNARY)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_bytes_to_a_unary_call(built: BuiltDatastore, channel: grpc.Channel, method: str, data: st.DataObject):
    message = data.draw(st.binary(max_size=200) | nearly_good(good(built).SerializeToString()))
    assert unary(channel, method, message) in {grpc.StatusCode.OK, *REFUSALS}
    assert_it_goes_on(built, channel)


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_no_message_to_health_is_an_invalid_argument(built: BuiltDatastore, channel: grpc.Channel, method: str):
    call = channel.unary_unary if method == "Check" else channel.unary_stream
    with pytest.raises(grpc.RpcError) as refused:
        list(call(f"/grpc.health.v1.Health/{method}")(NO_MESSAGE, timeout=PATIENCE_S))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert_it_goes_on(built, channel)


def test_no_message_to_reflection_is_an_invalid_argument(built: BuiltDatastore, channel: grpc.Channel):
    call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    with pytest.raises(grpc.RpcError) as refused:
        list(call(iter([NO_MESSAGE]), timeout=PATIENCE_S))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert_it_goes_on(built, channel)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_bytes_to_a_stream(built: BuiltDatastore, channel: grpc.Channel, data: st.DataObject):
    message = pb.RetrieveStreamRequest(request_id=7, request=good(built)).SerializeToString()
    messages = data.draw(st.lists(st.binary(max_size=200) | nearly_good(message), max_size=5))
    answers, ended = streamed(channel, messages)
    assert ended is None or ended.code() is grpc.StatusCode.INVALID_ARGUMENT
    codes = {code.value[0] for code in (*REFUSALS, grpc.StatusCode.DEADLINE_EXCEEDED)}
    for answer in map(pb.RetrieveStreamResponse.FromString, answers):
        assert answer.WhichOneof("result") == "response" or answer.error.code in codes
    assert ended is not None or len(answers) == len(messages)
    assert_it_goes_on(built, channel)


@pytest.mark.parametrize("sent", ["x" * 100_000, "\0" * 100_000, "é" * 100_000])
def test_what_is_echoed_fits_a_status(built: BuiltDatastore, channel: grpc.Channel, sent: str):
    request = good(built)
    request.build_id = sent
    with pytest.raises(grpc.RpcError) as refused:
        pb_grpc.RetrieverStub(channel).Retrieve(request)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "build-1" in refused.value.details()
    assert len(refused.value.details()) < 2_000
    (answer,) = pb_grpc.RetrieverStub(channel).RetrieveStream(iter([pb.RetrieveStreamRequest(request=request)]))
    assert answer.error.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert len(answer.error.message) < 2_000
