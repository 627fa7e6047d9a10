"""Compiled code is kept on disk, and whatever happens to it there only costs the time to compile again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HOMELESS = """
import os, sys
from dresd.compiled import njit
os.setgid(54321)
os.setuid(54321)
os.chdir(sys.argv[1])
sys.path.insert(0, "source")
import compiled_here
print(compiled_here.one.__name__)
"""
DRAFT = """
from decoder_client.drafting import MixtureDrafter
MixtureDrafter(vocab_size=8)
print("drafts")
"""
WAITED_FOR = """
import sys, threading
from dresd.compiled import warm
sys.path.insert(0, sys.argv[1])
import compiled_here

def slowly():
    compiled_here.one()
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()

warm(slowly, patience_s=0)
warm(slowly, patience_s=0)
"""
COMPILED = "from dresd.compiled import njit\n\n\n@njit\ndef one():\n    return 1\n"


def test_damaged_machine_code_is_compiled_again(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def draft() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", DRAFT], env=environment, check=False, capture_output=True, text=True
        )

    assert draft().stdout == "drafts\n"
    kept = list(tmp_path.rglob("*.nbi"))
    assert kept
    for file in kept:
        file.write_bytes(b"")
    again = draft()
    assert again.stdout == "drafts\n", again.stderr
    assert "compiling at every start" in again.stderr


def test_one_who_waits_for_compilation_is_told_why_once(tmp_path: Path) -> None:
    (tmp_path / "compiled_here.py").write_text(COMPILED, "utf-8")
    command = [sys.executable, "-c", WAITED_FOR, str(tmp_path)]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "machine code")}
    first, again = (
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True) for _ in range(2)
    )
    assert "compiling the inner loops" in first.stderr
    assert first.stderr.count("\n") == 1
    assert again.stderr == ""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be nobody")
@pytest.mark.parametrize("place", ["", "NUMBA_CACHE_DIR"])
def test_a_user_without_a_home_gets_no_folder_that_is_called_tilde(place: str) -> None:
    left_out = ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "DRESD_CACHE")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        source = Path(folder) / "source"
        source.mkdir(0o755)
        (source / "compiled_here.py").write_text(COMPILED, "utf-8")
        if place:
            environment[place] = f"{folder}/machine code"
        done = subprocess.run(
            [sys.executable, "-c", HOMELESS, folder], env=environment, check=False, capture_output=True, text=True
        )
        assert done.stdout == "one\n", done.stderr
        assert sorted(path.name for path in Path(folder).iterdir()) == [*(["machine code"] if place else []), "source"]
