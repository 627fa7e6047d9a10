"""What a manifest says of the software that wrote a datastore. It must not know what a datastore is."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("dresd", "faiss-cpu", "faiss-gpu", "numpy", "ray", "torch", "transformers")


def installed_versions() -> dict[str, str]:
    """Versions by name: Python's, and those of the packages that are installed (faiss comes under one of two names)."""
    installed = {package: _version_of(package) for package in _PACKAGES}
    found = {package: number for package, number in installed.items() if number is not None}
    return {"python": platform.python_version(), **found}


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
