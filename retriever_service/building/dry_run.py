"""What a build would take, told before anything heavy starts: from a sample of the corpus and a few seconds of work.

Everything but the sizes of files is an estimate unless the sample is the whole corpus.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retriever_service.building.config import BuildConfig
from retriever_service.building.entries import LEFT_CONTEXT_LENGTH
from retriever_service.building.errors import BuildError
from retriever_service.building.jobs import attempt, unwrap
from retriever_service.building.ray_connection import connect
from retriever_service.building.sources import Source, find_sources
from retriever_service.building.speed import EMBED, MEMORY, RESPOND
from retriever_service.building.target import examine
from retriever_service.datastore import token_dtype

if TYPE_CHECKING:
    from retriever_service.building.sampling import Sample

_WORKER = "retriever_service.building.speed:SpeedWorker"

_BITS = {"flat": 32.0, "sq8": 8.0, "sq4": 4.0, "pq": 4.0}
_ID_BYTES, _ORDER_BYTES, _TABLE_ENTRY_BYTES = 8, 4, 72
_ENTRY_MEMORY_BYTES = 64
"""Of the index of a partition, besides the coded keys."""
_REST_ENTRIES_PER_S = 50_000
"""A core shuffles and indexes about so many (`make bench-build` measures it)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a build would take.

    Attributes:
        files, bytes: of the corpus.
        exact: whether the whole corpus was read for this.
        documents: without equal ones only if `exact`.
        tokens: that the model would read.
        entries: that the datastore would hold.
        answer_tokens: that the model would generate, at most.
        partitions: of the datastore.
        datastore_bytes: on disk.
        work_bytes: on disk beside it while it is built.
        worker_bytes: memory of each worker (of its GPU, where it has one), measured.
        index_bytes: memory of indexing one partition.
        workers, gpus: copies of the model, and how many of them have a GPU.
        tokens_per_s: that one worker embeds, measured.
        answers_per_s: tokens that one worker generates, measured; 0 where none are.
        respond_hours, embed_hours: of a worker, all work together.
        rest_hours: of a core, about.
    """

    files: int
    bytes: int
    exact: bool
    documents: int
    tokens: int
    entries: int
    answer_tokens: int
    partitions: int
    datastore_bytes: int
    work_bytes: int
    worker_bytes: int
    index_bytes: int
    workers: int
    gpus: int
    tokens_per_s: int
    answers_per_s: int
    respond_hours: float
    embed_hours: float
    rest_hours: float


def estimate(config: BuildConfig) -> Estimate:
    """Looks at the model, a sample of the corpus and the speed of one worker; writes nothing.

    Raises:
        BuildError: as the build would, for what is found out so early.
    """
    return unwrap(attempt(lambda: _estimate(config)))


def _estimate(config: BuildConfig) -> Estimate:
    sources = find_sources(config.corpus_names)
    model = str(Path(config.model).resolve()) if Path(config.model).is_dir() else config.model
    with connect(config.ray_address, config.workers, config.threads) as jobs:
        identity = jobs.run(partial(examine, model)).identity
        absolute = tuple(source.absolute() for source in sources)
        sample: Sample = jobs.run(partial(_sample, absolute, model, config))
        if not sample.lengths:
            raise BuildError("No record that was looked at gives an entry. Build without --dry-run to see why.")
        arguments = {"model": model, "lengths": sample.lengths, "engine": config.engine}
        with jobs.actors(_WORKER, arguments, 1) as actors:
            wanted = (EMBED, *((RESPOND,) if config.respond else ()), MEMORY)
            measured = {what: number for each in wanted for what, number in actors.run([each])}
        pool = jobs.pool
    tokens_per_s, answers_per_s = measured[EMBED], measured.get(RESPOND, 0)
    scale = 1 / sample.share
    documents = round(len(sample.lengths) * scale)
    tokens, entries, answer_tokens = round(sum(sample.lengths) * scale), round(sample.entries * scale), 0
    if config.respond:
        answer_tokens = documents * config.answers_per_prompt * config.max_new_tokens
        entries = answer_tokens + (tokens * config.answers_per_prompt if config.prompt_keys else 0)
        tokens = tokens * config.answers_per_prompt + answer_tokens
    token_bytes = np.dtype(token_dtype(identity.vocab_size)).itemsize
    around = (config.continuation_length + LEFT_CONTEXT_LENGTH) * token_bytes
    code = _BITS[config.codec] * config.dims / 8
    # Documents, embedded keys, shuffled entries, the token table's positions, and entries while they are indexed.
    shuffled = 2 * config.dims + 4 + 4 * (config.continuation_length + LEFT_CONTEXT_LENGTH)
    work = 5 * tokens + entries * (2 * config.dims + shuffled + 4 * config.dims + around)
    return Estimate(
        files=len(sources),
        bytes=sum(source.size for source in sources),
        exact=sample.share == 1,
        documents=documents,
        tokens=tokens,
        entries=entries,
        answer_tokens=answer_tokens,
        partitions=config.partitions,
        datastore_bytes=round(entries * (code + around + _ID_BYTES + _ORDER_BYTES)),
        work_bytes=round(work + min(config.table_tokens, entries) * _TABLE_ENTRY_BYTES),
        worker_bytes=measured[MEMORY],
        index_bytes=round(entries / config.partitions * (code + _ENTRY_MEMORY_BYTES)),
        workers=pool.workers,
        gpus=pool.workers if pool.gpus else 0,
        tokens_per_s=tokens_per_s,
        answers_per_s=answers_per_s,
        respond_hours=answer_tokens / answers_per_s / 3600 if answers_per_s else 0.0,
        embed_hours=tokens / max(tokens_per_s, 1) / 3600,
        rest_hours=entries / _REST_ENTRIES_PER_S / 3600,
    )


def _sample(sources: tuple[Source, ...], model: str, config: BuildConfig) -> Sample:
    from retriever_service.building.sampling import take_sample  # there, because it loads the model's libraries

    return take_sample(sources, model, config)
