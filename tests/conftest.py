"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.prepare_model import prepare


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the real SmolLM2-135M-Instruct; fetched and converted if `make model` has not done so."""
    return prepare()
