"""A span for every call to the service, which the servers' own spans belong under.

Needs opentelemetry ("dresd[tracing]"): imported only by clients that trace. Knows neither servers nor what is asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

from decoder_client.drafts import Drafts
from dresd.tracing import traceparent_of


class CallSpan:
    """One call's. `traceparent` goes with its requests, and says whether they are to be traced, too."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.traceparent = traceparent_of(span)

    def outcome(self, drafts: Drafts | None, hedged: int) -> None:
        """What came of the call."""
        self._span.set_attribute("dresd.hedged", hedged)
        if drafts is None:
            self._span.set_status(Status(StatusCode.ERROR, "no drafts"))
            return
        self._span.set_attribute("dresd.partitions_asked", drafts.coverage.partitions_asked)
        self._span.set_attribute("dresd.partitions_answered", drafts.coverage.partitions_answered)


class CallTracing:
    """Spans of calls, under whatever span their threads are in."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("dresd.decoder")

    @contextlib.contextmanager
    def call(self, queries: int) -> Iterator[CallSpan]:
        """The span of a call for so many positions: from asking to having the answer, the work meanwhile included."""
        with self._tracer.start_as_current_span("dresd.retrieve", kind=SpanKind.CLIENT) as span:
            span.set_attribute("dresd.queries", queries)
            yield CallSpan(span)
