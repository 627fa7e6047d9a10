"""Builds SuffixDecoding's suffix trees, which the benchmark compares with, into the cache folder.

They are the authors' own C++ (Apache-2.0), out of the `arctic-inference` source distribution on PyPI: only the folder
`csrc/suffix_decoding` is compiled, in about a minute; it needs a C++20 compiler and Python's headers, no CUDA. Prints
the folder. A second run finds the finished folder and only prints it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from decoder_client.cache_folder import cache_folder
from decoder_client.evaluation.baselines.suffix_extension import RELEASE, extension_folder

SDIST = f"arctic-inference=={RELEASE}"
SDIST_SHA256 = "7f22e3e1b1071c6061c0d6951be17c0fb50b08d06d6e543144c8f52faba60a36"
SOURCES = "csrc/suffix_decoding/"
BUILD_TOOLS = ("cmake==4.4.5", "nanobind==2.9.2", "ninja==1.13.2")


def run(what: str, command: list[str], **environment: str) -> None:
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment
    )
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise SystemExit(f"could not {what}; the output is above")


def pip(what: str, *arguments: str) -> None:
    run(what, [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments])


def download_sources(folder: Path) -> Path:
    """Downloads the source distribution, whose checksum must be the known one, and unpacks what is compiled."""
    # Its own build requirements (torch, vLLM) are of no use here: nothing of it is installed.
    source = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", str(folder)]
    pip(f"download {SDIST}; check that pip reaches a package index", "download", *source, SDIST)
    archive = next(folder.glob("arctic_inference-*.tar.gz"))
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SDIST_SHA256:
        raise SystemExit(f"{archive.name} is not the expected file; delete pip's cache and run again")
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, path = member.name.partition("/")
            content = tar.extractfile(member) if path.startswith(SOURCES) and member.isfile() else None
            if content is not None:
                (folder / Path(path).name).write_bytes(content.read())
    return folder


def build(sources: Path, out: Path) -> None:
    """Compiles the extension into `out`."""
    tools = sources / "tools"
    pip("install the build tools", "install", "--target", str(tools), *BUILD_TOOLS)
    cmake, ninja = tools / "bin" / "cmake", tools / "bin" / "ninja"
    configure = [str(cmake), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", f"-DPython_EXECUTABLE={sys.executable}"]
    configure += [f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={out}", "-S", str(sources), "-B", str(sources / "build")]
    needs = "needs a C++20 compiler and Python's headers (Debian: apt install g++ python3-dev)"
    run(f"configure the build; it {needs}", configure, PYTHONPATH=str(tools))
    run(f"compile; it {needs}", [str(cmake), "--build", str(sources / "build")], PYTHONPATH=str(tools))


def prepare() -> Path:
    """The folder of the extension for this Python, built first if this is the first time."""
    target = extension_folder(cache_folder())
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as scratch:
            print("building SuffixDecoding's suffix trees (once, about a minute)", file=sys.stderr)
            built = Path(scratch) / "built"
            build(download_sources(Path(scratch)), built)
            built.rename(target)
    return target


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(prepare())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
