"""Compiled code is kept on disk, and whatever happens to it there only costs the time to compile again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DRAFT = """
from decoder_client.drafting import MixtureDrafter
MixtureDrafter(vocab_size=8)
print("drafts")
"""


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
