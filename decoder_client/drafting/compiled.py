"""Functions compiled by numba, with their machine code on disk where there is a place for it.

Knows numba, not what the functions do.
"""

from __future__ import annotations

import numba
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

_COMPILED: list[Dispatcher] = []


def njit(function=None, **options):
    """numba's `njit` with machine code kept on disk, or without where there is no place for it."""
    if function is None:
        return lambda decorated: njit(decorated, **options)
    try:
        compiled = numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:
        compiled = numba.njit(nogil=True, **options)(function)
    _COMPILED.append(compiled)
    return compiled


def forget_machine_code() -> None:
    """Compiles from now on without the disk, whose machine code cannot be read or written."""
    for compiled in _COMPILED:
        compiled._cache = NullCache()  # type: ignore[attr-defined]  # numba offers no public way
