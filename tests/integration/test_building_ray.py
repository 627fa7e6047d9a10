"""Ray as a build uses it: sums come back, and every failure is one sentence that was not tried again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from retriever_service.building.errors import BuildError
from retriever_service.building.jobs import Pool
from retriever_service.building.ray_connection import connect
from retriever_service.building.ray_jobs import RayJobs
from tests.support.building import BUG, FAILING_WORKER, FINE, FULL_DISK, IN_COMPANY, KILLED, KILLED_ONCE


@pytest.fixture(scope="module")
def jobs() -> Iterator[RayJobs]:
    with connect(None, 1) as connected:
        yield connected


def worked(jobs: RayJobs, blocks: list[int], **arguments: object) -> dict[int, int]:
    with jobs.actors(FAILING_WORKER, arguments, len(blocks)) as actors:
        return dict(actors.run(blocks))


def test_every_block_is_worked_on_once(jobs: RayJobs) -> None:
    assert worked(jobs, [10, 20, 30, 40, 50]) == dict.fromkeys([10, 20, 30, 40, 50], 1)
    assert worked(jobs, []) == {}


def test_actors_stay_for_a_second_run(jobs: RayJobs) -> None:
    with jobs.actors(FAILING_WORKER, {}, 2) as actors:
        assert dict(actors.run([10])) == {10: 1}
        assert dict(actors.run([20, 30])) == {20: 1, 30: 1}


def test_blocks_of_workers_that_died_are_done_by_others(jobs: RayJobs, tmp_path: Path) -> None:
    blocks = [FINE + 10, KILLED_ONCE + 10, FINE + 20, KILLED_ONCE + 20, FINE + 30]
    assert worked(jobs, blocks, marks=tmp_path) == dict.fromkeys(blocks, 1)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        (FULL_DISK, "No space left on the disk while writing 'some/file'"),
        (BUG, "A worker failed with ZeroDivisionError: division by nothing"),
        (KILLED, r"A worker process died: .* Ray found \d+\.\d GiB free. Use a smaller model .* --max-new-tokens"),
    ],
)
def test_a_failing_worker_ends_the_stage_with_a_sentence(
    jobs: RayJobs, block: int, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BuildError, match=sentence) as caught:
        worked(jobs, [FINE, block])
    assert "\n" not in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_that_cannot_be_made_ends_the_stage_with_its_sentence(jobs: RayJobs) -> None:
    with pytest.raises(BuildError, match="The worker cannot be made"):
        worked(jobs, [FINE], broken=True)


@pytest.mark.usefixtures("jobs")
def test_a_cluster_that_grows_gets_more_workers(tmp_path: Path) -> None:
    one = Pool(workers=1, threads=1, gpus=0, cores=1)
    growing = RayJobs(one, look=lambda: one.on(2, 0))
    blocks = [IN_COMPANY, IN_COMPANY + 10, IN_COMPANY + 20, IN_COMPANY + 30]
    assert worked(growing, blocks, marks=tmp_path) == dict.fromkeys(blocks, 1)
    assert growing.pool.workers == 2


def test_tasks_give_their_results_by_number(jobs: RayJobs) -> None:
    tasks = [partial(pow, 2, exponent) for exponent in range(4)]
    assert dict(jobs.run_tasks(tasks)) == {0: 1, 1: 2, 2: 4, 3: 8}


def test_a_failing_task_ends_the_stage_with_a_sentence(jobs: RayJobs) -> None:
    with pytest.raises(BuildError, match="No such file or directory: 'nowhere'"):
        dict(jobs.run_tasks([partial(open, "nowhere")]))
    with pytest.raises(BuildError, match="A worker failed with ValueError: "):
        dict(jobs.run_tasks([partial(int, "no number")]))


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(BuildError, match=r"127\.0\.0\.1:1"), connect("127.0.0.1:1", None):
        pass


@pytest.mark.parametrize(
    ("cpus", "gpus", "workers", "threads", "expected"),
    [
        (2, 0, None, None, Pool(workers=1, threads=2, gpus=0, cores=2)),
        (1, 0, None, None, Pool(workers=1, threads=1, gpus=0, cores=1)),
        (16, 0, None, None, Pool(workers=4, threads=4, gpus=0, cores=16)),
        (16, 2, None, None, Pool(workers=2, threads=8, gpus=1, cores=16)),
        (4, 1, 2, None, Pool(workers=2, threads=2, gpus=0, cores=4)),
        (4, 0, None, 1, Pool(workers=4, threads=1, gpus=0, cores=4)),
        (4, 0, 1, 1, Pool(workers=1, threads=1, gpus=0, cores=4)),
    ],
)
def test_the_pool_fits_the_machine(
    cpus: float, gpus: float, workers: int | None, threads: int | None, expected: Pool
) -> None:
    pool = Pool.plan(cpus, gpus, workers, threads)
    assert pool == replace(expected, is_fixed=workers is not None)
    # All workers fit on the machine at once.
    assert pool.cpus * pool.workers <= cpus


@pytest.mark.parametrize(
    ("pool", "cpus", "gpus", "workers"),
    [
        (Pool.plan(4, 0), 12, 0, 3),
        (Pool.plan(12, 0), 4, 0, 1),
        (Pool.plan(4, 0), 0, 0, 1),
        (Pool.plan(8, 0, workers=2), 64, 0, 2),
        (Pool.plan(16, 2), 64, 8, 8),
        # Not another kind of worker: its results would differ.
        (Pool.plan(4, 0), 12, 8, 3),
        (Pool.plan(16, 2), 64, 0, 1),
    ],
)
def test_the_pool_follows_the_cluster(pool: Pool, cpus: float, gpus: float, workers: int) -> None:
    changed = pool.on(cpus, gpus)
    assert (changed.workers, changed.threads, changed.gpus) == (workers, pool.threads, pool.gpus)


def test_a_worker_fits_on_a_machine_of_the_cluster() -> None:
    assert Pool.plan(8, 0, node_cpus=2) == Pool(workers=4, threads=2, gpus=0, cores=8)
    assert Pool.plan(2, 0, workers=1, node_cpus=1).cpus == 1


@pytest.mark.parametrize(
    ("workers", "memory", "told"),
    [
        (1, 3 * 2**30, "Ray found 3.0 GiB free. Use a smaller model"),
        (4, 2**29, "Ray found 0.5 GiB free. Use fewer --workers than 4"),
        (4, 0, "Ray found too little free."),
    ],
)
def test_the_hint_says_how_much_memory_there_was_and_what_needs_less(workers: int, memory: int, told: str) -> None:
    assert told in Pool(workers, threads=1, gpus=0, cores=4, memory=memory).memory_hint
