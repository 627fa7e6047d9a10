"""Overlays, played: pods in namespaces of their own, with their commands, files and variables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pods import ROOT, isolated, missing

PHASES = {"production": ("applied", "rolled", "killed", "published second", "published first"), "local": ()}


@pytest.mark.parametrize("overlay", PHASES)
def test_what_the_runbook_says_happens(overlay: str, tmp_path: Path):
    """In production while a decoder decodes, with the same output throughout."""
    if reason := missing():
        pytest.skip(f"this machine cannot play pods: {reason}")
    command = [*isolated(), sys.executable, "-m", "tests.support.cluster_scenario", overlay, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(phase in done.stdout for phase in PHASES[overlay])
