"""The C++ suffix trees of SuffixDecoding's authors: where they are built to, and what Python sees of them.

`scripts/build_suffix_decoding.py` builds them from the `arctic-inference` source distribution. Knows neither drafters
nor models.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import Protocol

from decoder_client.evaluation.baselines.missing import MissingPackageError

RELEASE = "0.3.0"
"""Of `arctic-inference`."""

_MODULE = "dresd_suffix_decoding._C"


class NativeDraft(Protocol):
    """What a native tree drafts."""

    token_ids: list[int]
    parents: list[int]
    probs: list[float]
    score: float


class NativeTree(Protocol):
    """A suffix tree of the native extension."""

    def extend(self, sequence: int, tokens: list[int], /) -> None:
        """Appends tokens to a sequence."""

    def speculate(
        self,
        context: list[int],
        max_tokens: int,
        max_factor: float,
        max_offset: float,
        min_probability: float,
        as_tree: bool,  # noqa: FBT001 - the extension takes arguments by position only
        /,
    ) -> NativeDraft:
        """Drafts what follows the context."""


class NewTree(Protocol):
    """The native tree's class."""

    def __call__(self, max_depth: int, /) -> NativeTree:
        """An empty tree."""


def extension_folder(cache: Path) -> Path:
    """Where the extension of this Python is built to and looked for."""
    return cache / f"suffix-decoding-{RELEASE}-{sys.implementation.cache_tag}"


def load_extension(cache: Path) -> NewTree:
    """Imports the extension built into the cache folder; MissingPackageError if there is none for this Python."""
    if _MODULE not in sys.modules:  # a process cannot load an extension of this kind twice
        loader = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
        spec = importlib.machinery.FileFinder(str(extension_folder(cache)), loader).find_spec(_MODULE)
        if spec is None or spec.loader is None:
            raise MissingPackageError("suffix-decoding", "python scripts/build_suffix_decoding.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[_MODULE] = module
    new_tree: NewTree = sys.modules[_MODULE].SuffixTree
    return new_tree
