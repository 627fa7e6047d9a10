"""Runs the stages of a build on Ray: blocks through a pool of actors that hold the model, tasks for the rest.

A failure a user can act on comes back as a sentence instead of an exception, so that Ray neither retries it nor
prints its traceback. Nothing is tried again: what kills a worker (usually a lack of memory) would kill the next.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from decoder_client.errors import DecoderError
from retriever_service.building.errors import BuildError, os_error_sentence
from retriever_service.datastore import DatastoreError

# Only counts and sentences pass through Ray's object store.
_OBJECT_STORE_BYTES = 128 << 20
_CORES_PER_WORKER = 4
_CONNECT_TIMEOUT_S = 10

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
    """

    workers: int
    threads: int
    gpus: int
    cpus: float

    @classmethod
    def plan(cls, cpus: float, gpus: float, workers: int | None) -> Pool:
        """One worker a GPU; without GPUs one for every 4 cores, because a copy uses several cores well."""
        count = workers or int(gpus) or max(1, int(cpus) // _CORES_PER_WORKER)
        # Reserving less than all cores keeps Ray's own light stages from starving.
        return cls(count, max(1, int(cpus) // count), 1 if gpus >= count else 0, min(1.0, cpus / (2 * count)))


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
        with _errors_in_one_sentence(), warnings.catch_warnings():
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
        with _errors_in_one_sentence():
            running = {remote.remote(task): number for number, task in enumerate(tasks)}
            while running:
                (ended,), _ = ray.wait(list(running), num_returns=1)
                outcome: Result | Failure = ray.get(ended)
                yield running.pop(ended), unwrap(outcome)


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


@contextmanager
def connect(address: str | None, workers: int | None) -> Iterator[RayJobs]:
    """Ray for the time of a build: the cluster at `address`, the one this process already uses, or one of its own.

    Raises:
        BuildError: nothing answers at `address`.
    """
    if address is not None:
        _check_reachable(address)
    # Read when Ray is imported or started: no report to its makers, no warnings about itself.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray
    import ray.data

    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.actor_task_retry_on_errors = False
    context.actor_init_retry_on_errors = False
    context.max_errored_blocks = 0
    started_here = not ray.is_initialized()
    if started_here:
        on_sigterm = signal.getsignal(signal.SIGTERM)
        own = {} if address else {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BuildError(f"Cannot reach Ray at {address or 'this machine'!r}: {_first_line(error)}") from error
        if threading.current_thread() is threading.main_thread():
            # Ray's own handler aborts the process, so that nothing would be cleaned up.
            signal.signal(signal.SIGTERM, on_sigterm)
    try:
        resources = ray.cluster_resources()
        yield RayJobs(Pool.plan(resources.get("CPU", 1.0), resources.get("GPU", 0.0), workers))
    finally:
        if started_here:
            ray.shutdown()


@contextmanager
def _errors_in_one_sentence() -> Iterator[None]:
    import ray.exceptions

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        # Of chained exceptions only the text survives the way here; the first is the one that began it.
        causes = re.findall(r"^[A-Za-z_][\w.]*(?:: .*)?$", str(error), re.MULTILINE)
        raise BuildError(f"A worker failed with {causes[0] if causes else _first_line(error)}") from error
    except ray.exceptions.RayError as error:
        raise BuildError(
            f"A worker process died: {_first_line(error)} Was there not enough memory? Try fewer --workers."
        ) from error


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes, and say so many times."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        return  # "auto" and the like
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise BuildError(
            f"Nothing answers at --ray-address {address} ({error}). Start a cluster there, or leave the option out."
        ) from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
