"""A span for every retrieve request, under the caller's, and over what is passed on to peers.

Needs opentelemetry ("dresd[tracing]"): imported only by servers that trace. Knows messages; not where spans go.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode

from dresd.tracing import context_of, traceparent_of
from dresd.v1 import retriever_pb2 as pb
from retriever_service.serving.validation import RefusedError

if TYPE_CHECKING:
    from retriever_service.serving.refusals import Context

_SERVICE = "dresd-retriever"
_HEADER = "traceparent"
_LONGEST_HEADER = 256
_FLUSH_MS = 2000


def provider_from_environment() -> TracerProvider:
    """Sends spans by OTLP over HTTP to where OpenTelemetry's own variables say (OTEL_EXPORTER_OTLP_ENDPOINT, ...).

    It has a thread of its own, so it is made in the process that uses it, after any fork.
    """
    named = {} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: _SERVICE}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class RequestTracing:
    """Spans of requests.

    Args:
        provider: of the tracer; `close` sends what it still holds and ends it.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("dresd.retriever")

    @contextlib.contextmanager
    def request(self, call: str, request: pb.RetrieveRequest, response: pb.RetrieveResponse) -> Iterator[None]:
        """The span of answering `request` with `response`, as which it is passed on to peers; a refusal ends it."""
        parent = context_of(request.traceparent)
        with self._tracer.start_as_current_span(
            f"dresd.v1.Retriever/{call}",
            parent,
            kind=SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            request.traceparent = traceparent_of(span)
            span.set_attribute("dresd.queries", request.num_queries)
            span.set_attribute("dresd.forwarded", request.forwarded)
            try:
                yield
            except RefusedError as refused:
                span.set_attribute("rpc.grpc.status_code", refused.code.value[0])
                span.set_status(Status(StatusCode.ERROR, refused.code.name))
                raise
            timing, coverage = response.timing, response.coverage
            for name, value in (
                ("rpc.grpc.status_code", 0),
                ("dresd.queue_us", timing.queue_us),
                ("dresd.search_us", timing.search_us),
                ("dresd.merge_us", timing.merge_us),
                ("dresd.partitions_asked", coverage.partitions_asked),
                ("dresd.partitions_answered", coverage.partitions_answered),
                ("dresd.nodes", sum(len(tree.tokens) for tree in response.trees)),
            ):
                span.set_attribute(name, value)
            span.set_attribute("dresd.build_id", response.build_id)

    @staticmethod
    def take_header(request: pb.RetrieveRequest, context: Context) -> None:
        """Puts a call's header into a request that says nothing itself: other callers' gRPC says it there."""
        if request.traceparent:
            return
        for name, value in context.invocation_metadata() or ():
            if name == _HEADER and isinstance(value, str) and len(value) <= _LONGEST_HEADER:
                request.traceparent = value

    def close(self) -> None:
        """Sends what has not been sent, for a while, and ends; blocks."""
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()
