"""Runs stages of the Dockerfile without Docker: their RUN and COPY lines in a clean Debian root, made by debootstrap.

A root of Debian bookworm with its own Python 3.11 stands in for the image python:3.11-slim-bookworm; a stage that is
based on anything else is refused. Prints how large each target's packages are and runs its command as the image's user.
Needs root and the package debootstrap.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = "ca-certificates,python3,python3-pip,python3-venv"
_FROM = re.compile(r"FROM (\S+) AS (\S+)")


@dataclass
class Stage:
    """One stage of the Dockerfile."""

    base: str
    name: str
    lines: list[str] = field(default_factory=list)


def stages_of(text: str) -> dict[str, Stage]:
    """By name, each with its instructions, those of several lines joined."""
    stages: dict[str, Stage] = {}
    current = None
    for line in re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", text)).splitlines():
        if begun := _FROM.match(line):
            current = stages[begun[2]] = Stage(begun[1], begun[2])
        elif current is not None and line.strip():
            current.lines.append(line)
    return stages


class Builder:
    """Makes roots of stages, each once, beside each other in a folder."""

    def __init__(self, folder: Path, stages: dict[str, Stage]) -> None:
        self._folder = folder
        self._stages = stages

    def root_of(self, name: str) -> Path:
        """The root that a stage ends with; RuntimeError where its base is no stage and not Python's image."""
        root = self._folder / name
        if not root.exists():
            stage = self._stages[name]
            scratch = self._folder / f".{name}.partial"
            shutil.rmtree(scratch, ignore_errors=True)
            if stage.base in self._stages:
                subprocess.run(["cp", "-a", str(self.root_of(stage.base)), str(scratch)], check=True)
            elif stage.base == "${PYTHON_IMAGE}":
                self._debian(scratch)
            else:
                raise RuntimeError(f"{name} is based on {stage.base}, which only Docker can fetch")
            self._follow(stage, scratch)
            scratch.rename(root)
        return root

    def _debian(self, root: Path) -> None:
        command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (root / "usr/bin/python").symlink_to("python3")
        for name in ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt"):
            if Path("/", name).exists():
                shutil.copy(Path("/", name), root / name)

    def _follow(self, stage: Stage, root: Path) -> None:
        folder = self._begins_in(stage)
        for line in stage.lines:
            word, _, rest = line.partition(" ")
            if word == "WORKDIR":
                folder = Path(rest)
                (root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                self._copy(rest.split(), root, folder)
            elif word == "RUN":
                print(f"{stage.name}: {rest[:100]}", flush=True)
                run_in(root, f"cd {folder} && {rest}")

    def _begins_in(self, stage: Stage) -> Path:
        """The working directory that it has from its base."""
        base = self._stages.get(stage.base)
        if base is None:
            return Path("/")
        said = [line.partition(" ")[2] for line in base.lines if line.startswith("WORKDIR ")]
        return Path(said[-1]) if said else self._begins_in(base)

    def _copy(self, words: list[str], root: Path, folder: Path) -> None:
        source = ROOT
        if words[0].startswith("--from="):
            source = self.root_of(words.pop(0).removeprefix("--from="))
        *names, target = words
        for name in names:
            place = root / str(folder / target).lstrip("/")
            place = place / Path(name).name if target.endswith("/") else place
            origin = source / name.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", str(origin), str(place)], check=True)


def run_in(root: Path, command: str, *, user: str = "0") -> None:
    """A shell command in a root, with pip's settings of this machine; CalledProcessError if it fails."""
    said = {
        name: value
        for name, value in os.environ.items()
        if name in {"PIP_CERT", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT"}
    }
    environment = {**said, "PATH": "/opt/dresd/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"}  # noqa: S108
    words = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$@"',
    ]
    chroot = [str(root), f"--userspec={user}:{user}", str(root), "/bin/sh", "-c", command]
    subprocess.run([*words, *chroot], check=True, env=environment)


def main() -> int:
    """Builds the targets named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=["retriever"], metavar="TARGET", help="default: retriever")
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "roots", help="where roots are kept")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    builder = Builder(folder.absolute(), stages_of((ROOT / "Dockerfile").read_text("utf-8")))
    for target in arguments.targets:
        root = builder.root_of(target)
        run_in(root, "tini -- dresd-retriever --version", user="10001")
        size = subprocess.run(["du", "-sm", str(root / "opt/dresd")], check=True, capture_output=True, text=True).stdout
        print(f"{target}: {size.split()[0]} MB of packages", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
