"""A place for the work of builds that is this very process: what a build makes does not depend on where it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module

from transformers.utils import logging

from retriever_service.building.config import BuildConfig
from retriever_service.building.job import build
from retriever_service.building.jobs import BlockWorker, Pool, Result, attempt, unwrap
from retriever_service.building.progress import Progress
from retriever_service.datastore import Manifest


def build_here(config: BuildConfig, progress: Progress | None = None) -> Manifest:
    """`build` without Ray, whose processes take seconds to begin."""
    return build(config, progress, connect=in_process)


@contextmanager
def in_process(_address: str | None, _workers: int | None, threads: int | None) -> Iterator[InProcessJobs]:
    """A `Connect`; the noise that workers turn off in processes of their own is turned on again."""
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        yield InProcessJobs(Pool(1, threads or 1, 0, 1))
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


class InProcessJobs:
    """`Jobs` done one after the other."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    @contextmanager
    def actors(self, worker: str, arguments: Mapping[str, object], _most: int) -> Iterator[_OneWorker]:
        yield _OneWorker(worker, {**arguments, "threads": self.pool.threads})

    def run_tasks(self, tasks: Iterable[Callable[[], Result]], *, cpus: float = 1.0) -> Iterator[tuple[int, Result]]:
        assert cpus <= self.pool.cores
        for number, task in enumerate(tasks):
            yield number, unwrap(attempt(task))

    def run(self, task: Callable[[], Result], *, cpus: float = 1.0) -> Result:
        ((_, result),) = self.run_tasks([task], cpus=cpus)
        return result

    def tell(self, done: str) -> None:
        """This process is not lost."""


class _OneWorker:
    def __init__(self, worker: str, arguments: Mapping[str, object]) -> None:
        self._kind = worker
        self._arguments = arguments

    @cached_property
    def _worker(self) -> BlockWorker:
        module, _, name = self._kind.partition(":")
        made: BlockWorker = getattr(import_module(module), name)(**self._arguments)
        return made

    def run(self, blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
        for block in blocks:
            yield block, unwrap(attempt(lambda block=block: self._worker(block)))
