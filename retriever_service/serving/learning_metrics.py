"""What a server learns, for Prometheus: read from the stores when asked. Knows names and units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from retriever_service.serving.learning import Learning

_PREFIX = "dresd_retriever_learned"
_COUNTERS = {
    "appended": ("entries_appended", "Entries that decoders sent and that were kept, since the server started"),
    "known": ("answers_known", "Answers that were sent again"),
    "failures": ("write_failures", "Writes that the disk refused"),
}


class LearningMetrics(Collector):
    """Shows the stores of `learning`."""

    def __init__(self, learning: Learning) -> None:
        self._learning = learning

    def describe(self) -> Iterable[Metric]:
        """The names, by which a registry finds that they are taken."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """The numbers now."""
        stores = self._learning.stores.items()
        entries = GaugeMetricFamily(f"{_PREFIX}_entries", "Learned entries that are searched", labels=("collection",))
        for name, store in stores:
            entries.add_metric((name,), store.num_entries)
        yield entries
        for field, (suffix, text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"{_PREFIX}_{suffix}", text, labels=("collection",))
            for name, store in stores:
                counter.add_metric((name,), getattr(store, field))
            yield counter
