"""Answers that decoders might have given, with random keys, and a disk that has no room for them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from retriever_service.learning import Answer


def random_answer(
    seed: int, *, tokens: int = 12, dims: int = 8, vocab_size: int = 50, first: int = 2, identifier: bytes | None = None
) -> Answer:
    random = np.random.default_rng(seed)
    keys = random.normal(size=(max(0, tokens - 1 - first), dims))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    return Answer(
        random.bytes(16) if identifier is None else identifier,
        int(random.integers(2**40)),
        random.integers(vocab_size, size=tokens).astype(np.int32),
        np.arange(first, tokens - 1),
        keys.astype(np.float16),
    )


def same_answer(one: Answer, other: Answer) -> bool:
    return one.encoded() == other.encoded()


@contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    """This process's writes fail there, as on a full disk (but with EFBIG); skips where that cannot be arranged."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
