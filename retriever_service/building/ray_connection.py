"""Ray for the time of a build: started and stopped, or joined, without a trace of it on the terminal or the disk.

Knows nothing of what runs on Ray.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

from retriever_service.building.errors import RAY_ENDED, BuildError, RayLostError, first_line
from retriever_service.building.jobs import Pool
from retriever_service.building.ray_jobs import RayJobs
from retriever_service.building.signals import signals_held

# Only counts and sentences pass through Ray's object store.
_OBJECT_STORE_BYTES = 128 << 20
_CONNECT_TIMEOUT_S = 10
_PATIENCE_S = 3.0
"""A Ray of our own whose store of names dies will not come back, as a cluster's may."""
_PATIENCE_FOR_A_CLUSTER_S = 45.0
"""Less than Ray has itself: 60 s, by default."""
_BETWEEN_S = 1.0


@contextmanager
def connect(address: str | None, workers: int | None, threads: int | None = None) -> Iterator[RayJobs]:
    """Ray for the time of a build: the cluster at `address`, the one this process already uses, or one of its own.

    Signals that come while Ray starts or stops are acted on when it has.

    A Ray that is lost ends this process, see `_Watch`.

    Raises:
        BuildError: nothing answers at `address`, or Ray does not start here.
    """
    if address is not None:
        _check_reachable(address)
    with signals_held():  # interrupted imports of compiled modules end in errors of their own
        import_quietly()
    import ray

    with nullcontext() if ray.is_initialized() else _started(address), _Watch(address, workers, threads) as watch:
        yield watch.jobs


def import_quietly() -> None:
    """Imports Ray so that it says nothing by itself, and leaves signals alone."""
    # Read when Ray is imported or started: no report to its makers, no warnings about itself, and no handler of
    # signals that aborts this process, so that nothing would be cleaned up.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    import ray  # noqa: F401 - here, where it is quiet

    logging.getLogger("ray").setLevel(logging.ERROR)


class _Watch:
    """Sees how large the cluster is, and whether it is there at all, as long as its block is open.

    Where Ray's store of names is gone, every call of Ray waits, and after a while Ray ends this process in words of its
    own. So this process is ended before that, from a thread of its own, in words that help.
    """

    def __init__(self, address: str | None, workers: int | None, threads: int | None) -> None:
        import ray

        self._address = address
        self._patience_s = _PATIENCE_S if address is None else _PATIENCE_FOR_A_CLUSTER_S
        host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
        self._store = (host.strip("[]"), int(port))
        cpus, gpus, memory = _resources()
        largest = max((node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)
        self._pool = Pool.plan(cpus, gpus, workers, threads, memory, largest)
        self.jobs = RayJobs(self._pool, self._look)
        self._is_silent = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ray-watch", daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> Pool:
        """What the cluster has become."""
        if not self._is_silent:
            cpus, gpus, _ = _resources()
            self._pool = self._pool.on(cpus, gpus)
        return self._pool

    def _watch(self) -> None:
        heard = time.monotonic()
        while not self._ended.wait(_BETWEEN_S):
            why = self._silence()
            self._is_silent = why is not None
            if why is None:
                heard = time.monotonic()
            elif time.monotonic() - heard > self._patience_s:
                self._leave(why)

    def _silence(self) -> OSError | None:
        """Why the store of names does not answer, if it does not."""
        try:
            socket.create_connection(self._store, timeout=_BETWEEN_S).close()
        except OSError as error:
            return error
        return None

    def _leave(self, error: OSError) -> None:
        lost = (
            f"The Ray cluster at {self._address} does not answer any more ({error.strerror or error})."
            if self._address
            else RAY_ENDED
        )
        newline = "\n" if sys.stderr.isatty() else ""  # behind a bar
        print(f"{newline}error: {RayLostError(lost, self.jobs.done)}", file=sys.stderr, flush=True)
        os._exit(1)


def _resources() -> tuple[float, float, float]:
    """Cores, GPUs and bytes of memory of all machines together."""
    import ray

    found = ray.cluster_resources()
    return found.get("CPU", 0.0), found.get("GPU", 0.0), found.get("memory", 0.0)


@contextmanager
def _started(address: str | None) -> Iterator[None]:
    # In a thread of its own, because in the main thread Ray replaces the handler of SIGTERM. The thread lives as long
    # as Ray: its processes are made to die with the thread that started them.
    session: Path | None = None
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray") as thread:
        try:
            with signals_held():
                session = thread.submit(_start, address).result()
            yield
        finally:
            with signals_held():
                thread.submit(_stop).result()
                if session is not None:
                    _remove_session(session)


def _start(address: str | None) -> Path | None:
    """Starts or joins Ray; returns the folder of the session if it is ours."""
    import ray

    own = {
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }
    try:
        context = ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **({} if address else own)
        )
    except Exception as error:  # Ray raises nothing more special where a node does not start in time
        raise BuildError(
            f"Cannot reach Ray at {address!r}: {first_line(error)} Is the cluster of the same Ray version?"
            if address
            else f"Ray does not start on this machine: {first_line(error)} Is there memory and disk left?"
        ) from error
    return None if address else Path(str(context.address_info["session_dir"]))


def _stop() -> None:
    import ray

    ray.shutdown()


def _remove_session(session: Path) -> None:
    """Removes the logs and sockets of a session that has ended, which Ray keeps for ever."""
    shutil.rmtree(session, ignore_errors=True)
    latest = session.with_name("session_latest")
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)


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
