"""Puts Debian's Prometheus (prometheus, promtool) into the cache folder; `make manifests` and tests use it.

Nothing is installed: the package is fetched with apt-get and unpacked.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.prepare_model import cache_folder

_PROGRAMS = ("prometheus", "promtool")


def prepare(cache: Path) -> Path:
    """The folder with both programs; fetches them if they are not there.

    Raises:
        OSError: this machine has no apt-get.
        subprocess.CalledProcessError: the package cannot be had.
    """
    folder = cache / "prometheus"
    if not all((folder / program).exists() for program in _PROGRAMS):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            scratch = Path(name)
            _unpack(scratch)
            shutil.rmtree(folder, ignore_errors=True)
            (scratch / "usr" / "bin").rename(folder)
    return folder


def _unpack(scratch: Path) -> None:
    def run(*command: str) -> None:
        subprocess.run(command, check=True, cwd=scratch, stdout=subprocess.DEVNULL)

    # As who we are: apt's own user may not write here.
    download = ("apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", "prometheus")
    try:
        run(*download)
    except subprocess.CalledProcessError:
        run("apt-get", "update", "-q")  # a new machine has no lists yet; needs root
        run(*download)
    (package,) = scratch.glob("prometheus_*.deb")
    run("dpkg-deb", "-x", package.name, ".")


def main() -> int:
    """Prints where they are."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(prepare(cache_folder()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
