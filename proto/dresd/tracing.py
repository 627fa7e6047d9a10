"""What both sides say of a request to OpenTelemetry, and how a span's place in its trace travels in a message.

Needs opentelemetry ("dresd[tracing]"): imported only where something is traced. Knows neither side.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_HEADER = "traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()


def traceparent_of(span: Span) -> str:
    """Its place in its trace, for `RetrieveRequest.traceparent`; "" where it is in none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier.get(_HEADER, "")


def context_of(traceparent: str) -> Context:
    """Where a span begins that belongs under that one; a trace of its own for what is none."""
    return _PROPAGATOR.extract({_HEADER: traceparent}, Context())
