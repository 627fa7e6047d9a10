"""Embedded blocks on disk: what the target computed for the documents of a block, between two stages of a build."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from retriever_service.building.plan import Block


@dataclass(frozen=True, slots=True)
class EmbeddedBlock:
    """What the target computed at a block's n stored positions, in order of the block's documents.

    Attributes:
        vectors: float32 states [n, hidden_size], or float16 keys [n, dims].
        top_tokens: int32 [n, 8], the most likely next tokens.
        top_probabilities: float32 [n, 8].
    """

    vectors: NDArray[np.float32] | NDArray[np.float16]
    top_tokens: NDArray[np.int32]
    top_probabilities: NDArray[np.float32]

    def save(self, path: Path) -> None:
        """Writes the block beside its place, then renames: a file that is there is whole."""
        beside = path.with_suffix(".partial")
        beside.write_bytes(
            save({"vectors": self.vectors, "tokens": self.top_tokens, "probabilities": self.top_probabilities})
        )
        beside.replace(path)

    @classmethod
    def load(cls, path: Path) -> EmbeddedBlock:
        """Reads a block."""
        tensors = load(path.read_bytes())
        return cls(tensors["vectors"], tensors["tokens"], tensors["probabilities"])


def block_path(directory: Path, block: Block) -> Path:
    """Where a block lies among the embedded ones."""
    return directory / f"block-{block.number:06d}.safetensors"
