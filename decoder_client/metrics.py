"""A process's decoders for Prometheus: what drafts gained, and how the service answered.

    registry = prometheus_client.CollectorRegistry()
    decoder_client.metrics.register(registry, decoder)

Numbers are read when the registry is asked for them; decoding pays for none of it. Nothing is global, no port is
opened, and a decoder that is forgotten is not kept. Needs prometheus_client ("dresd[metrics]"). Knows names and units.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from decoder_client.stats import GenerationStats

if TYPE_CHECKING:
    from decoder_client.retriever import RetrieverClient

_PREFIX = "dresd_decoder"
_COUNTS = {
    "tokens": ("tokens", "Tokens of answers"),
    "forwards": ("forwards", "Forward passes of the target model"),
    "steps": ("steps", "Forward passes after the prompts'"),
    "steps_with_draft": ("drafts", "Steps that verified a draft; of all steps they are the coverage"),
    "drafted": ("draft_tokens", "Draft tokens verified"),
    "accepted": ("accepted_tokens", "Draft tokens accepted"),
    "forward_s": ("forward_seconds", "Time in the target model"),
    "draft_s": ("draft_seconds", "Time making drafts, the wait for the service included"),
    "verify_s": ("verification_seconds", "Time accepting drafts"),
}
_OUTCOMES = ("answered", "late", "failed", "skipped")


class Decoding(Protocol):
    """What decodes: a SpeculativeDecoder, or what `dresd_generate` makes."""

    @property
    def totals(self) -> GenerationStats:
        """Of all answers so far."""

    @property
    def retriever(self) -> RetrieverClient | None:
        """What it draws drafts from."""


def register(registry: CollectorRegistry, *decoders: Decoding) -> None:
    """Shows the sum over `decoders` in `registry`. Called once for a registry, with all of its decoders.

    Raises:
        ValueError: the registry shows decoders already.
    """
    registry.register(_DecoderMetrics(decoders))


class _DecoderMetrics(Collector):
    def __init__(self, decoders: Iterable[Decoding]) -> None:
        self._decoders = [weakref.ref(decoder) for decoder in decoders]

    def describe(self) -> Iterable[Metric]:
        """The names, by which a registry finds that they are taken."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        decoders = [decoder for reference in self._decoders if (decoder := reference()) is not None]
        totals = sum((decoder.totals for decoder in decoders), GenerationStats())
        for field, (name, text) in _COUNTS.items():
            yield CounterMetricFamily(f"{_PREFIX}_{name}", text, value=getattr(totals, field))
        clients = {id(decoder.retriever): decoder.retriever for decoder in decoders if decoder.retriever is not None}
        yield from _retrievals(clients.values())


def _retrievals(clients: Iterable[RetrieverClient]) -> Iterator[Metric]:
    all_stats = [client.stats for client in clients]
    calls = CounterMetricFamily(f"{_PREFIX}_retrievals", "Calls to the service by outcome", labels=("outcome",))
    for outcome in _OUTCOMES:
        calls.add_metric((outcome,), sum(getattr(stats, outcome) for stats in all_stats))
    yield calls
    seconds = HistogramMetricFamily(f"{_PREFIX}_retrieval_duration_seconds", "Answered calls to the service")
    if all_stats:
        columns = zip(*(stats.buckets for stats in all_stats), strict=True)
        buckets = [
            (str(column[0][0]) if column[0][0] < float("inf") else "+Inf", float(sum(count for _, count in column)))
            for column in columns
        ]
        seconds.add_metric((), buckets, sum_value=sum(stats.total_ms for stats in all_stats) / 1e3)
    yield seconds
    yield CounterMetricFamily(
        f"{_PREFIX}_reconnects", "Handshakes after the first", value=sum(stats.reconnects for stats in all_stats)
    )
    replicas = GaugeMetricFamily(
        f"{_PREFIX}_replica_state", "1 for a server that is asked, 0 for one that is left alone", labels=("server",)
    )
    known = {server for client in clients for server in client.servers}
    asked = {server for client in clients for server in client.servers_asked}
    for server in sorted(known):
        replicas.add_metric((server,), float(server in asked))
    yield replicas
    yield GaugeMetricFamily(
        f"{_PREFIX}_services_left_alone",
        "Clients that leave their service alone at the moment",
        value=sum(client.trouble != "" for client in clients),
    )
