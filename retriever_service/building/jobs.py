"""What the stages of a build ask of whoever does their work: blocks for workers that hold the model, and tasks.

A failure a user can act on travels as a sentence. Knows neither the stages nor where their work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from decoder_client.errors import DecoderError
from retriever_service.building.errors import BuildError, os_error_sentence
from retriever_service.datastore import DatastoreError

_CORES_PER_WORKER = 4

Result = TypeVar("Result")


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


class BlockWorker(Protocol):
    """Made once in each worker with `threads` and other arguments, then called with block after block."""

    def __call__(self, block: int) -> int:
        """Does one block's work, leaving its results in files; returns how much it was."""


@dataclass(frozen=True, slots=True)
class Pool:
    """How the model's copies are laid over the cluster.

    Attributes:
        workers: copies of the model.
        threads: cores each may use.
        gpus: of each, 0 or 1.
        cores: of the whole cluster.
        memory: bytes that Ray counts for all of them, 0 if it does not say.
        is_fixed: so many workers were asked for, whatever the cluster becomes.
    """

    workers: int
    threads: int
    gpus: int
    cores: int
    memory: float = 0.0
    is_fixed: bool = False

    @classmethod
    def plan(
        cls,
        cpus: float,
        gpus: float,
        workers: int | None = None,
        threads: int | None = None,
        memory: float = 0.0,
        node_cpus: float | None = None,
    ) -> Pool:
        """One worker a GPU; without GPUs one for every 4 cores, because a copy uses several cores well.

        Args:
            cpus, gpus: of all machines together.
            workers: asked for, if any.
            threads: of each, asked for, if any.
            memory: bytes of all machines.
            node_cpus: of the largest machine, on which a worker must fit; None for one machine.
        """
        cores = max(1, int(cpus))
        largest = cores if node_cpus is None else max(1, int(node_cpus))
        count = workers or int(gpus) or max(1, cores // (threads or min(_CORES_PER_WORKER, largest)))
        each = threads or max(1, min(cores // count, largest))
        return cls(count, each, 1 if gpus >= count else 0, cores, memory, is_fixed=workers is not None)

    def on(self, cpus: float, gpus: float) -> Pool:
        """Workers of the same kind on what the cluster has become; at least one, for machines that are yet to come."""
        cores = max(1, int(cpus))
        count = int(gpus) if self.gpus else cores // self.threads
        return replace(self, workers=self.workers if self.is_fixed else max(1, count), cores=cores)

    @property
    def cpus(self) -> float:
        """Logical cores that each worker reserves of Ray: its own, so that workers spread over machines."""
        return min(float(self.threads), self.cores / self.workers)

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


class Workers(Protocol):
    """Some `BlockWorker`s of one kind."""

    def run(self, blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Works on blocks; yields (block, what its worker returned) as they end.

        Raises:
            BuildError: a worker failed.
        """


class Jobs(Protocol):
    """A place where work is done, for the time of a build."""

    @property
    def pool(self) -> Pool:
        """How the model's copies are laid over it."""

    def actors(self, worker: str, arguments: Mapping[str, object], most: int) -> AbstractContextManager[Workers]:
        """Workers, made when they are first needed, gone when the block ends.

        Args:
            worker: "module:class" of a `BlockWorker`, imported there and not here.
            arguments: of the class, besides `threads`.
            most: blocks there are; no more workers are made than that.
        """

    def run_tasks(self, tasks: Iterable[Callable[[], Result]], *, cpus: float = 1.0) -> Iterator[tuple[int, Result]]:
        """Runs functions; yields (number, result) as they end.

        Args:
            tasks: taken as there is room for them.
            cpus: cores of each; 0 for light ones that run beside workers.

        Raises:
            BuildError: a task failed.
        """

    def run(self, task: Callable[[], Result], *, cpus: float = 1.0) -> Result:
        """Runs one function; raises BuildError if it failed."""

    def tell(self, done: str) -> None:
        """Notes how far the work is, for the user if this place is lost."""


Connect = Callable[["str | None", "int | None", "int | None"], AbstractContextManager[Jobs]]
"""Opens such a place by an address, a number of workers and the cores of each; None leaves them to it."""
