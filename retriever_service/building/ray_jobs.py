"""Runs the stages of a build on Ray: blocks through a pool of actors that hold the model, tasks for the rest.

A failure a user can act on comes back as a sentence instead of an exception, so that nothing is tried again for it and
Ray prints no traceback. What a worker was doing when its process or its machine died is given to another, up to
`MAX_ATTEMPTS` times, because a lack of memory would kill every one. That is safe as every result is a file that is
whole or not there, under a name of its own: an attempt that was thought dead writes the same once more.

Ray's own retries are set accordingly. Tasks: `max_retries` for processes that die, none for exceptions. Actors: none of
Ray's, which would bind a block to one actor and wait for it to come back on a machine that may not.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from retriever_service.building.errors import RAY_ENDED, BuildError, RayLostError, first_line
from retriever_service.building.jobs import BlockWorker, Failure, Pool, Result, attempt, unwrap

MAX_ATTEMPTS = 4
"""At a block or a task whose worker dies."""

_LOOK_S = 2.0
"""Between looks at what has become of the cluster."""
_BLOCKS_AHEAD = 2
"""Given to an actor at a time, so that it does not wait for the next."""
_TASKS_AHEAD = 4
"""For each core, at a time."""


class RayJobs:
    """An open connection to Ray; see `connect`.

    Attributes:
        pool: as it was when somebody looked last.
        done: how far the work is, for a user whose Ray is lost.
    """

    def __init__(self, pool: Pool, look: Callable[[], Pool] | None = None) -> None:
        """Args:
        pool: as it is now.
        look: what it has become; None for a pool that stays as it is.
        """
        self.pool = pool
        self.done = "what is done"
        self._look = look
        self._looked = -math.inf

    def look(self) -> Pool:
        """The pool as of some seconds ago at most."""
        if self._look is not None and time.monotonic() - self._looked >= _LOOK_S:
            self.pool = self._look()
            self._looked = time.monotonic()
        return self.pool

    @contextmanager
    def actors(self, worker: str, arguments: Mapping[str, object], most: int) -> Iterator[ActorPool]:
        """See `Jobs`; a worker is an actor."""
        pool = ActorPool(self, worker, arguments, most)
        try:
            yield pool
        finally:
            pool.close()

    def run_tasks(self, tasks: Iterable[Callable[[], Result]], *, cpus: float = 1.0) -> Iterator[tuple[int, Result]]:
        """See `Jobs`; a few are given to Ray at a time."""
        import ray

        remote = ray.remote(num_cpus=cpus, max_retries=MAX_ATTEMPTS - 1, retry_exceptions=False)(attempt)
        waiting = iter(enumerate(tasks))
        running: dict[object, int] = {}
        with _errors_in_one_sentence(self):
            while True:
                room = self.look().cores * _TASKS_AHEAD
                while len(running) < room and (following := next(waiting, None)) is not None:
                    running[remote.remote(following[1])] = following[0]
                if not running:
                    return
                for ended in ray.wait(list(running), num_returns=1, timeout=_LOOK_S)[0]:
                    outcome: Result | Failure = ray.get(ended)
                    yield running.pop(ended), unwrap(outcome)

    def run(self, task: Callable[[], Result], *, cpus: float = 1.0) -> Result:
        """See `Jobs`."""
        ((_, result),) = self.run_tasks([task], cpus=cpus)
        return result

    def tell(self, done: str) -> None:
        """See `Jobs`."""
        self.done = done


class ActorPool:
    """Hands blocks to actors; see `RayJobs.actors`."""

    def __init__(self, jobs: RayJobs, worker: str, arguments: Mapping[str, object], most: int) -> None:
        self._jobs = jobs
        self._arguments = (worker, arguments)
        self._most = max(1, most)
        self._actors: list[Any] = []
        self._ready: set[Any] = set()

    def run(self, blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
        """See `Workers`; BuildError, too, where a block's workers died `MAX_ATTEMPTS` times."""
        import ray
        import ray.exceptions

        waiting = deque(blocks)
        left = len(waiting)
        deaths: dict[int | None, int] = {}
        running: dict[Any, tuple[Any, int | None]] = {}  # (actor, block), in order; no block: it is being made
        with _errors_in_one_sentence(self._jobs):
            while left:
                self._feed(waiting, running, left)
                ready, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
                if not ready:
                    continue
                (ended,) = ready
                actor, block = running[ended]
                try:
                    outcome: int | Failure | None = ray.get(ended)
                except ray.exceptions.RayTaskError:
                    raise
                except ray.exceptions.RayError:
                    lost = self._lose(actor, running)
                    deaths[lost[0]] = deaths.get(lost[0], 0) + 1  # it worked on the first
                    if deaths[lost[0]] >= MAX_ATTEMPTS:
                        raise
                    waiting.extendleft(block for block in reversed(lost) if block is not None)
                    continue
                del running[ended]
                if block is None:
                    self._ready.add(actor)
                    deaths.pop(None, None)
                elif outcome is not None:
                    yield block, unwrap(outcome)
                    left -= 1

    def close(self) -> None:
        """Ends the actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()
        self._ready.clear()

    def _feed(self, waiting: deque[int], running: dict[Any, tuple[Any, int | None]], left: int) -> None:
        """Makes actors where some are missing, and gives those that are ready something to do."""
        import ray

        pool, (worker, arguments) = self._jobs.look(), self._arguments
        for _ in range(min(pool.workers, self._most, left) - len(self._actors)):
            # Ray's own retries are off: see the top of this file.
            kind = ray.remote(num_cpus=pool.cpus, num_gpus=pool.gpus, max_restarts=0, max_task_retries=0)(_BlockActor)
            actor = kind.remote(worker, {**arguments, "threads": pool.threads})
            self._actors.append(actor)
            running[actor.ready.remote()] = (actor, None)
        held = Counter(actor for actor, _ in running.values())
        for _ in range(_BLOCKS_AHEAD):
            for actor in self._actors:
                if waiting and actor in self._ready and held[actor] < _BLOCKS_AHEAD:
                    block = waiting.popleft()
                    running[actor.work.remote(block)] = (actor, block)
                    held[actor] += 1

    def _lose(self, actor: Any, running: dict[Any, tuple[Any, int | None]]) -> list[int | None]:  # noqa: ANN401
        """Forgets an actor; returns the blocks that it held, in the order it had them."""
        import ray

        ray.kill(actor)  # it may be out of reach and not dead
        self._actors.remove(actor)
        self._ready.discard(actor)
        mine = [(reference, block) for reference, (holder, block) in running.items() if holder == actor]
        for reference, _ in mine:
            del running[reference]
        return [block for _, block in mine]


class _BlockActor:
    """Holds a `BlockWorker`."""

    def __init__(self, worker: str, arguments: Mapping[str, object]) -> None:
        self._kind = worker
        self._arguments = arguments
        self._worker: BlockWorker | None = None

    def ready(self) -> None:
        """Returns when the actor is there."""

    def work(self, block: int) -> int | Failure:
        """One block's work."""
        return attempt(partial(self._work, block))

    def _work(self, block: int) -> int:
        # Made here and not in the constructor, whose failures come back as tracebacks.
        if self._worker is None:
            module, _, name = self._kind.partition(":")
            self._worker = getattr(import_module(module), name)(**self._arguments)
        return self._worker(block)


@contextmanager
def _errors_in_one_sentence(jobs: RayJobs) -> Iterator[None]:
    import ray.exceptions

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        # Of chained exceptions only the text survives the way here; the first is the one that began it.
        causes = re.findall(r"^[A-Za-z_][\w.]*(?:: .*)?$", str(error), re.MULTILINE)
        raise BuildError(f"A worker failed with {causes[0] if causes else first_line(error)}") from error
    except (ray.exceptions.LocalRayletDiedError, ray.exceptions.RaySystemError) as error:
        raise RayLostError(RAY_ENDED, jobs.done) from error
    except ray.exceptions.RayError as error:
        raise BuildError(f"A worker process died: {first_line(error)} {jobs.pool.memory_hint}") from error
