"""Runs the stages of a build on Ray: blocks through a pool of actors that hold the model, tasks for the rest.

A failure a user can act on comes back as a sentence instead of an exception, so that Ray neither retries it nor
prints its traceback. Nothing is tried again: what kills a worker (usually a lack of memory) would kill the next.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from decoder_client.errors import DecoderError
from retriever_service.building.errors import BuildError, first_line, os_error_sentence
from retriever_service.datastore import DatastoreError

_CORES_PER_WORKER = 4

Result = TypeVar("Result")
Block = TypeVar("Block", contravariant=True)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no result, in one sentence."""

    sentence: str


def attempt(work: Callable[[], Result]) -> Result | Failure:
    """Does the work; failures a user can act on become a `Failure`, any other is raised."""
    try:
        return work()
    except (BuildError, DatastoreError, DecoderError) as error:
        return Failure(str(error))
    except MemoryError:
        return Failure("Not enough memory. Use fewer --workers, or more --partitions.")
    except OSError as error:
        return Failure(os_error_sentence(error))


def unwrap(outcome: Result | Failure) -> Result:
    """The result; raises `BuildError` for a failure."""
    if isinstance(outcome, Failure):
        raise BuildError(outcome.sentence)
    return outcome


class BlockWorker(Protocol[Block]):
    """Made once in each actor, then called with block after block."""

    def __call__(self, block: Block) -> int:
        """Does one block's work, leaving its results in files; returns how many entries or answers it gave."""


@dataclass(frozen=True, slots=True)
class Pool:
    """How the model's copies are laid over the cluster.

    Attributes:
        workers: copies of the model.
        threads: cores each may use.
        gpus: of each, 0 or 1.
        cpus: logical cores each reserves of Ray.
        memory: bytes that Ray counts for all of them, 0 if it does not say.
    """

    workers: int
    threads: int
    gpus: int
    cpus: float
    memory: float = 0.0

    @classmethod
    def plan(cls, cpus: float, gpus: float, workers: int | None, memory: float = 0.0) -> Pool:
        """One worker a GPU; without GPUs one for every 4 cores, because a copy uses several cores well."""
        count = workers or int(gpus) or max(1, int(cpus) // _CORES_PER_WORKER)
        # Reserving less than all cores keeps Ray's own light stages from starving.
        return cls(count, max(1, int(cpus) // count), 1 if gpus >= count else 0, min(1.0, cpus / (2 * count)), memory)

    @property
    def memory_hint(self) -> str:
        """How much memory there was, and what needs less."""
        found = f"{self.memory / 2**30:.1f} GiB" if self.memory else "too little"
        fewer = (
            f"fewer --workers than {self.workers}, each of which holds a copy of the model"
            if self.workers > 1
            else "a smaller model (this build held one copy of it, the least)"
        )
        return (
            f"Was there not enough memory? Ray found {found} free. Use {fewer}; where the model answers, a smaller "
            "--max-new-tokens; where the index is made, more --partitions; or a machine with more memory."
        )


class RayJobs:
    """An open connection to Ray; see `connect`."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def run_blocks(
        self,
        worker: Callable[..., BlockWorker[Block]],
        arguments: Mapping[str, object],
        blocks: Sequence[Block],
    ) -> int:
        """Every block through a pool of actors, by Ray Data; returns the sum of what the workers returned.

        Args:
            worker: makes a `BlockWorker` from `arguments` and `threads`, in each actor.
            arguments: of the worker.
            blocks: picklable.

        Raises:
            BuildError: a worker failed.
        """
        import ray.data

        if not blocks:
            return 0
        arguments = {**arguments, "threads": self.pool.threads}
        with self._errors_in_one_sentence(), warnings.catch_warnings():
            # The only way to say max_restarts; a named parameter comes with the release that removes this one.
            warnings.filterwarnings("ignore", message=".*ray_remote_args.*")
            done = ray.data.from_items(
                [{"block": block} for block in blocks], override_num_blocks=len(blocks)
            ).map_batches(
                _PoolActor,
                fn_constructor_kwargs={"worker": worker, "arguments": arguments},
                batch_size=1,
                batch_format="numpy",
                compute=ray.data.ActorPoolStrategy(size=min(self.pool.workers, len(blocks))),
                num_cpus=self.pool.cpus,
                num_gpus=self.pool.gpus or None,
                max_restarts=0,
            )
            # Closed here even when we leave early: what Ray Data drops later than Ray itself complains about that.
            with closing(iter(done.iter_rows())) as rows:
                return sum(
                    unwrap(Failure(str(row["failure"])) if row["failure"] else int(row["count"])) for row in rows
                )

    def run_tasks(self, tasks: Sequence[Callable[[], Result]]) -> Iterator[tuple[int, Result]]:
        """Runs functions as Ray tasks of one core each; yields (number, result) as they end.

        Raises:
            BuildError: a task failed.
        """
        import ray

        remote = ray.remote(num_cpus=min(1.0, self.pool.cpus), max_retries=0, retry_exceptions=False)(attempt)
        with self._errors_in_one_sentence():
            running = {remote.remote(task): number for number, task in enumerate(tasks)}
            while running:
                (ended,), _ = ray.wait(list(running), num_returns=1)
                outcome: Result | Failure = ray.get(ended)
                yield running.pop(ended), unwrap(outcome)

    @contextmanager
    def _errors_in_one_sentence(self) -> Iterator[None]:
        import ray.exceptions

        try:
            yield
        except ray.exceptions.RayTaskError as error:
            # Of chained exceptions only the text survives the way here; the first is the one that began it.
            causes = re.findall(r"^[A-Za-z_][\w.]*(?:: .*)?$", str(error), re.MULTILINE)
            raise BuildError(f"A worker failed with {causes[0] if causes else first_line(error)}") from error
        except ray.exceptions.RayError as error:
            raise BuildError(f"A worker process died: {first_line(error)} {self.pool.memory_hint}") from error


class _PoolActor:
    """Adapts a `BlockWorker` to Ray Data: one row in, one row out."""

    def __init__(self, worker: Callable[..., BlockWorker[Any]], arguments: Mapping[str, object]) -> None:
        self._kind = worker
        self._arguments = arguments
        self._worker: BlockWorker[Any] | None = None

    def __call__(self, batch: Mapping[str, Any]) -> Mapping[str, list[object]]:
        outcome = attempt(partial(self._work, batch["block"][0]))
        if isinstance(outcome, Failure):
            return {"count": [0], "failure": [outcome.sentence]}
        return {"count": [outcome], "failure": [""]}

    def _work(self, block: object) -> int:
        # Made here and not in the constructor, whose failures come back as tracebacks.
        if self._worker is None:
            self._worker = self._kind(**self._arguments)
        return self._worker(block)
