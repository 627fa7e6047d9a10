"""A server of the service that calls FAISS alone in turn with its own search, so that both are met by the same caches.

A server that waits for requests has cold caches when one comes, which a loop of searches has not.
`python -m benchmarks.beside DATASTORE TIMES` serves until it is told to stop, and writes its times to a file then.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore import Datastore, DraftBatch, codecs
from retriever_service.serving.config import ServeConfig
from retriever_service.serving.server import run


class BesideFaiss(Datastore):
    """A datastore of one partition; every other draft of one query is preceded by FAISS alone on the same lists.

    Attributes:
        faiss_us: microseconds of FAISS, where it came first.
        draft_us: microseconds of drafts that nothing preceded.
    """

    faiss_us: list[float]
    draft_us: list[float]

    def draft(
        self,
        keys: NDArray[np.float32],
        next_tokens: NDArray[np.int64],
        **options: Any,  # noqa: ANN401 - handed on
    ) -> DraftBatch:
        """See `Datastore`."""
        if not hasattr(self, "faiss_us"):  # called while it is opened
            self.faiss_us, self.draft_us = [], []
        ((opened,),) = self.segments.values()
        segment = opened.segment
        if len(self.faiss_us) <= len(self.draft_us):
            place = np.searchsorted(segment.tokens, next_tokens)
            lists = segment.token_lists.choose(keys, place, self.manifest.nprobe)
            wanted = min(options["neighbors"], int(np.diff(segment.entry_offsets)[place[0]]))
            begun = time.perf_counter_ns()
            codecs.search_lists(segment.index, keys, lists, wanted)
            self.faiss_us.append((time.perf_counter_ns() - begun) / 1000)
            return super().draft(keys, next_tokens, **options)
        begun = time.perf_counter_ns()
        batch = super().draft(keys, next_tokens, **options)
        self.draft_us.append((time.perf_counter_ns() - begun) / 1000)
        return batch


def main(arguments: list[str]) -> int:
    """Serves."""
    faiss.omp_set_num_threads(1)
    stores: list[BesideFaiss] = []

    def opened(path: Path) -> Datastore:
        store = BesideFaiss.open(path, verify_checksums=False)
        if isinstance(store, BesideFaiss):  # which `open` does not say
            stores.append(store)
        return store

    status = run(ServeConfig(Path(arguments[0]), listen="127.0.0.1:0"), opened)
    times = {"faiss_us": stores[0].faiss_us, "draft_us": stores[0].draft_us}
    Path(arguments[1]).write_text(json.dumps(times))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
