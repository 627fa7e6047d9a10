"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts.prepare_model import prepare

# Read when torch and FAISS are imported, here and in the processes that tests start: two processes with a thread a
# core each spin for the same cores and run many times slower than with one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the real SmolLM2-135M-Instruct; fetched and converted if `make model` has not done so."""
    return prepare()
