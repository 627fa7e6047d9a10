"""What measurements are made on and with. Asks the machine and the installed packages; knows no measurement."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import torch

from decoder_client.evaluation.results import Environment

_PACKAGES = ("dresd", "torch", "transformers", "numpy", "grpcio", "faiss-cpu", "faiss-gpu", "pydivsufsort", "scann")
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "DRESD_CACHE")


def environment() -> Environment:
    """Of this process, now."""
    return Environment(
        argv=(Path(sys.argv[0]).name, *sys.argv[1:]),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        python=platform.python_version(),
        platform=platform.platform(),
        processor=_processor(),
        accelerator=torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        cpu_count=_usable_cpus(),
        torch_threads=torch.get_num_threads(),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        versions=dict(_versions()),
    )


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    with suppress(OSError, UnicodeDecodeError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)
