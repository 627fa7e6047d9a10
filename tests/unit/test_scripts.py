"""Every script explains itself and refuses what it does not know, before it does anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.py")), ROOT / "examples" / "demo.py"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_explains_itself(script: Path, tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "DRESD_CACHE": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
    for option, code in (("--help", 0), ("--no-such-option", 2)):
        done = subprocess.run(
            [sys.executable, str(script), option], check=False, capture_output=True, text=True, env=environment
        )
        assert done.returncode == code, done.stderr
        assert (done.stdout if code == 0 else done.stderr).startswith("usage: ")
    assert list(tmp_path.iterdir()) == []
