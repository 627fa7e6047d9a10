"""The driver of a build from its embedded documents on, as a process of its own, so that its memory can be measured.

    python -m benchmarks.building.driver FOLDER STAGE CORES WORKERS PARTITIONS [MODEL]

STAGE is `rest` (shuffle, index, publish) or `embed`. Prints JSON: seconds of each stage, and most bytes of memory of
this process and of all processes of the build together.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from benchmarks.building.jobs import planned
from benchmarks.building.memory import Memory
from benchmarks.synthetic import DIMS
from dresd.identity import ModelIdentity
from retriever_service.building.config import BuildConfig
from retriever_service.building.jobs import Pool
from retriever_service.building.progress import NoProgress
from retriever_service.building.publishing import Finisher
from retriever_service.building.ray_connection import import_quietly
from retriever_service.building.ray_jobs import RayJobs
from retriever_service.building.stages import Stages
from retriever_service.building.target import Target
from retriever_service.datastore import CorpusProvenance, assign_tokens

TABLE_SHARE = 0.1
"""Of positions, whose likely next tokens are kept: as in a corpus of 10,000,000 tokens with the default options."""
_FINGERPRINT = "0" * 64
_VOCABULARY = 49_152

Result = TypeVar("Result")


@contextmanager
def ray_of(cores: int) -> Iterator[None]:
    """Ray on this machine with so many cores."""
    import_quietly()
    import ray

    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, object_store_memory=128 << 20)
    try:
        yield
    finally:
        ray.shutdown()


def main(arguments: list[str]) -> None:
    """Runs what is asked for."""
    folder, stage = Path(arguments[0]).resolve(), arguments[1]
    cores, workers, partitions = map(int, arguments[2:5])
    model = arguments[5] if len(arguments) > 5 else ""
    identity = ModelIdentity("synthetic", "", _FINGERPRINT, _FINGERPRINT, DIMS, _VOCABULARY)
    config = BuildConfig(
        model="synthetic",
        corpus=("synthetic",),
        out=folder / "out",
        partitions=partitions,
        table_tokens=int(TABLE_SHARE * planned(folder).totals().entries),
    )
    seconds: dict[str, float] = {}
    with ray_of(cores), Memory() as memory:
        jobs = RayJobs(Pool(workers, cores // workers, 0, cores))
        stages = Stages(folder, config, model, Target(identity, 2048), jobs, NoProgress(), goes_on=False)

        def timed(name: str, work: Callable[[], Result]) -> Result:
            begun = time.perf_counter()
            result = work()
            seconds[name] = time.perf_counter() - begun
            return result

        plan = planned(folder)
        if stage == "embed":
            timed("embed", lambda: stages.embed(plan))
        else:
            totals = plan.totals()
            routing = assign_tokens(plan.token_counts(), partitions)
            # As many at once as there are workers, so that each of them does.
            list(jobs.run_tasks([warm_up] * cores))
            shuffled = timed("shuffle", lambda: stages.shuffle(plan, folder / "embedded", routing))
            segments = timed(
                "index", lambda: stages.index(totals, folder / "embedded", shuffled, partitions=partitions)
            )
            corpus = CorpusProvenance(files=[], documents=totals.documents, tokens=totals.tokens)
            finisher = Finisher(stages.datastore, stages.reducer, routing, identity, corpus, 16, "sq8", "benchmark")
            timed("publish", lambda: jobs.run(lambda: finisher.finish(segments), cpus=jobs.pool.cpus))
    print(json.dumps({"seconds": seconds, "own": memory.own, "together": memory.together}))


def warm_up() -> None:
    """Loads what tasks need, which takes seconds however many entries there are."""
    import retriever_service.building.index
    import retriever_service.datastore  # noqa: F401


if __name__ == "__main__":
    main(sys.argv[1:])
