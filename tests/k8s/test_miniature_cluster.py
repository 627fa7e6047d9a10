"""The production overlay, played: pods in namespaces of their own, with their commands, files and variables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pods import ROOT, isolated, missing


def test_decoding_goes_on_whatever_happens_to_the_cluster(tmp_path: Path):
    if reason := missing():
        pytest.skip(f"this machine cannot play pods: {reason}")
    command = [*isolated(), sys.executable, "-m", "tests.support.cluster_scenario", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    for phase in ("applied", "rolled", "killed", "published second", "published first"):
        assert phase in done.stdout
