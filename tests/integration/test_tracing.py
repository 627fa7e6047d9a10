"""Traces that join decoders, servers and the servers that those ask."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from decoder_client.retriever import RetrieverClient, RetrieverConfig
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.serving.tracing import RequestTracing
from tests.support.datastore import BuiltDatastore
from tests.support.retriever import PATIENT
from tests.support.serving import (
    IDENTITY,
    PATIENCE_S,
    OpenStream,
    ServerProcess,
    ServerThread,
    eventually,
    local_config,
    request_for,
    servable_datastore,
    serving,
)

SPAN_ID = "00f067aa0ba902b7"
TRACEPARENT = f"00-4bf92f3577b34da6a3ce929d0e0e4736-{SPAN_ID}-01"


class Spans:
    """What one process would tell OpenTelemetry."""

    def __init__(self, **options: object) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def only(self) -> ReadableSpan:
        eventually(lambda: self.exporter.get_finished_spans())
        (span,) = self.exporter.get_finished_spans()
        self.exporter.clear()
        return span


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return servable_datastore(tmp_path_factory.mktemp("tracing") / "store", num_partitions=2)


@pytest.fixture(scope="module")
def server_spans() -> Spans:
    return Spans()


@pytest.fixture(scope="module")
def server(built: BuiltDatastore, server_spans: Spans) -> Iterator[ServerThread]:
    with serving(local_config(built.path), tracing=RequestTracing(server_spans.provider)) as running:
        yield running


def question(built: BuiltDatastore, **changes: object) -> pb.RetrieveRequest:
    return request_for(built.entries.keys[:40].astype(np.float16), built.entries.next_tokens[:40].tolist(), **changes)


@contextmanager
def decoder(address: str, spans: Spans | None) -> Iterator[RetrieverClient]:
    config = RetrieverConfig(address, **PATIENT)
    with RetrieverClient(config, None if spans is None else spans.provider) as client:
        client.connect(IDENTITY)
        yield client


def ask(client: RetrieverClient, built: BuiltDatastore) -> None:
    drafts = client.retrieve(
        built.entries.keys[:2].astype(np.float16),
        built.entries.next_tokens[:2].tolist(),
        neighbors=9,
        max_nodes=9,
        temperature=0.1,
    )
    assert drafts is not None


def is_under(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return (
        span.parent is not None
        and span.parent.span_id == parent.context.span_id
        and span.context.trace_id == parent.context.trace_id
    )


def test_a_servers_span_of_a_streamed_request_is_under_the_decoders(
    server: ServerThread, server_spans: Spans, built: BuiltDatastore
):
    mine = Spans()
    with decoder(server.address, mine) as client:
        with mine.provider.get_tracer("test").start_as_current_span("step") as step:
            ask(client, built)
        call, outer = mine.exporter.get_finished_spans()
    theirs = server_spans.only()
    assert is_under(call, outer)
    assert outer.context == step.get_span_context()
    assert is_under(theirs, call)
    assert theirs.name == "dresd.v1.Retriever/RetrieveStream"
    assert (theirs.attributes["dresd.queries"], theirs.attributes["dresd.build_id"]) == (2, "build-1")
    assert theirs.attributes["dresd.nodes"] > 0
    assert call.attributes["dresd.partitions_asked"] == call.attributes["dresd.partitions_answered"] > 0


@pytest.mark.parametrize("said_by", ["header", "request"])
def test_a_servers_span_of_a_unary_request_is_under_the_callers(
    server: ServerThread, server_spans: Spans, built: BuiltDatastore, said_by: str
):
    with grpc.insecure_channel(server.address) as channel:
        request = question(built, **({"traceparent": TRACEPARENT} if said_by == "request" else {}))
        metadata = (("traceparent", TRACEPARENT),) if said_by == "header" else ()
        pb_grpc.RetrieverStub(channel).Retrieve(request, timeout=PATIENCE_S, metadata=metadata)
    span = server_spans.only()
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == SPAN_ID


def test_a_peers_span_is_under_that_of_the_server_that_asked_it(built: BuiltDatastore):
    front, back = Spans(), Spans()
    with (
        serving(local_config(built.path, partitions=[1]), tracing=RequestTracing(back.provider)) as peer,
        serving(
            local_config(built.path, partitions=[0], peers=peer.address), tracing=RequestTracing(front.provider)
        ) as asked,
        grpc.insecure_channel(asked.address) as channel,
    ):
        stub = pb_grpc.RetrieverStub(channel)

        def is_full() -> bool:
            coverage = stub.Retrieve(question(built), timeout=PATIENCE_S).coverage
            return coverage.partitions_answered == 2

        eventually(is_full)  # the servers know each other
        front.exporter.clear()
        back.exporter.clear()
        assert is_full()
        ours, theirs = front.only(), back.only()
    assert is_under(theirs, ours)
    assert theirs.attributes["dresd.forwarded"] is True


@pytest.mark.parametrize("said", ["", "00-0-0-0", "nonsense", "\x00" * 1000, TRACEPARENT.replace("-", "_"), "ü" * 55])
def test_what_is_no_traceparent_begins_a_trace(
    server: ServerThread, server_spans: Spans, built: BuiltDatastore, said: str
):
    with OpenStream(server.address) as stream:
        stream.send(1, question(built, traceparent=said))
        assert stream.receive().WhichOneof("result") == "response"
    assert server_spans.only().parent is None


def test_a_refusals_span_has_its_status(server: ServerThread, server_spans: Spans, built: BuiltDatastore):
    with OpenStream(server.address) as stream:
        stream.send(1, question(built, build_id="another"))
        assert stream.receive().WhichOneof("result") == "error"
    span = server_spans.only()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["rpc.grpc.status_code"] == grpc.StatusCode.FAILED_PRECONDITION.value[0]


def test_what_a_decoder_does_not_sample_no_server_does(built: BuiltDatastore):
    theirs, mine = Spans(), Spans(sampler=ALWAYS_OFF)
    with (
        serving(local_config(built.path), tracing=RequestTracing(theirs.provider)) as running,
        decoder(running.address, mine) as client,
    ):
        ask(client, built)
    assert mine.exporter.get_finished_spans() == theirs.exporter.get_finished_spans() == ()


def test_nothing_of_opentelemetry_is_loaded_where_nothing_is_traced():
    said = (
        "import sys, retriever_service.serving.server, decoder_client.retriever; print('opentelemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "False\n"


class Collector(ThreadingHTTPServer):
    received: bytes = b""


class Collecting(BaseHTTPRequestHandler):
    def do_POST(self):
        content = self.rfile.read(int(self.headers["content-length"]))
        is_compressed = self.headers.get("content-encoding") == "gzip"
        self.server.received += gzip.decompress(content) if is_compressed else content
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_sends_its_spans_at_the_latest_when_it_stops(built: BuiltDatastore):
    with Collector(("127.0.0.1", 0), Collecting) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_address[1]}", "NO_PROXY": "*"}
        try:
            with ServerProcess(built.path, "--traces", environment=where) as server:
                with grpc.insecure_channel(server.ready()) as channel:
                    pb_grpc.RetrieverStub(channel).Retrieve(question(built), timeout=PATIENCE_S)
                server.send(signal.SIGTERM)
                code, _, errors = server.finish()
        finally:
            collector.shutdown()
            thread.join()
    assert code == 0, errors
    assert b"dresd-retriever" in collector.received
    assert b"dresd.v1.Retriever/Retrieve" in collector.received
