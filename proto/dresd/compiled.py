"""Functions compiled by numba, with their machine code on disk where there is a place for it.

Knows numba, not what the functions do.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pickle import PickleError

import numba
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

logger = logging.getLogger(__name__)

_COMPILED: list[Dispatcher] = []


def njit(function=None, **options):
    """numba's `njit` with machine code kept on disk, or without where there is no place for it."""
    if function is None:
        return lambda decorated: njit(decorated, **options)
    try:
        compiled = numba.njit(cache=_has_place(function), nogil=True, **options)(function)
    except RuntimeError:
        compiled = numba.njit(nogil=True, **options)(function)
    _COMPILED.append(compiled)
    return compiled


def _has_place(function: Callable[..., object]) -> bool:
    """Whether numba would keep machine code in a folder that is meant for it.

    For a user without a home it would make one that is called "~", wherever the program was started.
    """
    if numba.config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME"):
        return True
    try:
        Path.home()
    except RuntimeError:
        beside = Path(inspect.getfile(function)).parent / "__pycache__"
        return os.access(beside if beside.exists() else beside.parent, os.W_OK)
    return True


def warm(call_everything: Callable[[], object], *, patience_s: float = 3.0) -> None:
    """Compiles what `call_everything` calls, or loads it from the cache on disk, so that no answer waits for it.

    Says so, once in a process, where compiling takes longer than `patience_s` seconds.
    """
    waiting = threading.Timer(patience_s, _say_that_it_compiles)
    waiting.daemon = True
    waiting.start()
    try:
        _call(call_everything)
    finally:
        waiting.cancel()


def _call(call_everything: Callable[[], object]) -> None:
    try:
        call_everything()
    except (OSError, EOFError, ValueError, PickleError, ImportError, AttributeError) as error:
        # A full disk, or a cache that something has damaged; numba has no exception of its own for them.
        logger.warning("compiling at every start, because compiled code cannot be kept on disk: %s", error)
        for compiled in _COMPILED:
            compiled._cache = NullCache()  # type: ignore[attr-defined]  # numba offers no public way
        call_everything()


def _say_that_it_compiles() -> None:
    if any(compiled.stats.cache_misses for compiled in _COMPILED):  # else a busy machine is slow to load it
        _say_once()


@cache
def _say_once() -> None:
    logger.warning("compiling the inner loops: half a minute, once for an installation; a busy machine takes longer")
