"""A build by vLLM where there is none ends with a sentence that says what to do."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

import pytest

from retriever_service.building.errors import BuildError
from retriever_service.building.vllm_engine import PROGRAM, PYTHON, VllmEngine
from tests.support.models import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("llama", tmp_path_factory.mktemp("models") / "llama")


def python(folder: Path, does: str) -> str:
    """A program in Python's place."""
    path = folder / "python"
    (folder / "does.py").write_text(does)
    # The first line of a script cannot name an interpreter whose path has a space in it.
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder / "does.py"}"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("does", "complaint"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' Does"),
        ("raise SystemExit(3)", "it said nothing and returned 3"),
        ('print(\'{"failed": "No. Never."}\', flush=True); input()', "No. Never."),
        ("import sys; input(); print('ValueError: no memory\\nand more', file=sys.stderr)", "ValueError: no memory"),
    ],
)
def test_a_vllm_that_does_not_start_says_why(does: str, complaint: str, model: Path, tmp_path: Path) -> None:
    environment = {**os.environ, PYTHON: python(tmp_path, does)}
    with pytest.raises(BuildError, match=re.escape(complaint)):
        VllmEngine(str(model), 1, environment)


def test_no_such_python(model: Path) -> None:
    with pytest.raises(BuildError, match=f"Name one with vLLM by {PYTHON}"):
        VllmEngine(str(model), 1, {**os.environ, PYTHON: "/no/such/python"})


def test_the_program_is_there() -> None:
    """Building may not import it."""
    assert (Path(__file__).parents[2] / (PROGRAM.replace(".", "/") + ".py")).is_file()
