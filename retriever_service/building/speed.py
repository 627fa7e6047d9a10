"""How fast one worker is with this model here, measured for some seconds on documents like those of the corpus.

Loads the model's libraries only where it measures.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence

import numpy as np

from retriever_service.building.document import Document
from retriever_service.building.engines import make_engine

EMBED, RESPOND, MEMORY = range(3)
"""What is measured: tokens a second that are embedded, or generated; bytes of memory at most so far."""

_SECONDS = 4.0
_DOCUMENTS = 64
_PROMPTS = 16
_ANSWER_TOKENS = 16
_TOKENS = 64
"""Any vocabulary has them."""


class SpeedWorker:
    """A `BlockWorker` whose block is what to measure, and whose result is the number."""

    def __init__(self, *, model: str, lengths: Sequence[int], engine: str, threads: int) -> None:
        """Args:
        model: folder or hub name.
        lengths: tokens of documents (or prompts) like those of the corpus; one at least.
        engine: one of `ENGINES`.
        threads: of the computation on a CPU.
        """
        self._model = model
        self._lengths = np.sort(np.array(lengths, np.int64))
        self._engine = engine
        self._threads = threads

    def __call__(self, what: int) -> int:
        """Measures."""
        return {EMBED: self._embed, RESPOND: self._respond, MEMORY: self._memory}[what]()

    def _embed(self) -> int:
        engine = make_engine(self._engine, self._model, self._threads)
        random = np.random.default_rng(0)
        done, begun = 0, 0.0
        while not begun or time.perf_counter() - begun < _SECONDS:
            # Neighbours in length, as in a block.
            first = int(random.integers(max(len(self._lengths) - _DOCUMENTS, 0) + 1))
            lengths = self._lengths[first : first + _DOCUMENTS]
            documents = [Document.of([], random.integers(0, _TOKENS, max(length, 2)).tolist()) for length in lengths]
            engine.embed(documents, None, np.zeros(int(sum(each.stored.sum() for each in documents)), np.bool_))
            if begun:
                done += int(lengths.sum())
            else:  # the first time, memory is found and code compiled
                begun = time.perf_counter()
        return round(done / (time.perf_counter() - begun))

    def _respond(self) -> int:
        engine = make_engine(self._engine, self._model, self._threads)
        length = int(np.median(self._lengths))
        prompts = np.random.default_rng(0).integers(0, _TOKENS, (_PROMPTS, length)).tolist()
        begun = time.perf_counter()
        answers = engine.answer(prompts, max_new_tokens=_ANSWER_TOKENS, temperature=0.0, seed=0)
        return max(round(sum(map(len, answers)) / (time.perf_counter() - begun)), 1)

    @staticmethod
    def _memory() -> int:
        import torch

        on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        return on_gpu or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
