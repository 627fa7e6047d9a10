"""Our numbers where Prometheus finds those of vLLM, or on a port of our own.

vLLM shows what its engine process counts only if `PROMETHEUS_MULTIPROC_DIR` names a folder that all its processes
share, which it sets by itself with several API servers. There our counters add themselves to vLLM's `/metrics`; a port
shows them in any case. The names are those of every decoder (`decoder_client.metrics`). Knows names and counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, start_http_server

from decoder_client.errors import SettingError
from decoder_client.metrics import Decoding, register

_INTERVAL_S = 1.0
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class SharedCounters:
    """Counters in files that another process of vLLM reads; they get what was added since the last time."""

    def __init__(self, decoding: Decoding, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Copies the counters of `decoding`, when asked, at most once a second."""
        self._source = CollectorRegistry()
        register(self._source, decoding)
        self._clock = clock
        self._next = 0.0
        self._copies: dict[str, Counter] = {}
        self._last: dict[tuple[str, tuple[str, ...]], float] = {}

    def refresh(self) -> None:
        """Copies, unless that was done a moment ago."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _INTERVAL_S
        for family in self._source.collect():
            if family.type != "counter":
                continue
            for sample in family.samples:
                labels = tuple(sorted(sample.labels))
                if family.name not in self._copies:
                    self._copies[family.name] = Counter(family.name, family.documentation, labels)
                copy = self._copies[family.name]
                values = tuple(sample.labels[label] for label in labels)
                added = sample.value - self._last.get((family.name, values), 0.0)
                self._last[family.name, values] = sample.value
                (copy.labels(*values) if labels else copy).inc(max(0.0, added))


def show(decoding: Decoding, port: int) -> SharedCounters | None:
    """Shows the numbers of `decoding` on `port`, unless it is 0, and where vLLM's own are shared between processes.

    Returns:
        What is to be refreshed now and then; None where nothing is shared.

    Raises:
        SettingError: the port is taken, or not ours to take.
    """
    if port:
        registry = CollectorRegistry()
        register(registry, decoding)
        try:
            start_http_server(port, registry=registry)
        except OSError as error:
            raise SettingError(
                f"metrics_port {port} cannot be opened ({error.strerror}). Give another one, or 0 for none."
            ) from error
    return SharedCounters(decoding) if os.environ.get(MULTIPROCESS) else None
