"""Embedded blocks on disk: what the target computed for the documents of a block, between two stages of a build."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever_service.building import blocks

_VECTORS, _TABLE = range(2)


@dataclass(frozen=True, slots=True)
class EmbeddedBlock:
    """What the target computed at a block's n stored positions, in order of the block's documents.

    Attributes:
        vectors: float32 states [n, hidden_size], or float16 keys [n, dims].
        previous: int32 [m], of m of the positions, the token before the key's own; -1 where there is none.
        current: int32 [m], the key's own token.
        top_tokens: int32 [m, 8], the most likely next tokens there.
        top_probabilities: float32 [m, 8].
    """

    vectors: NDArray[np.float32] | NDArray[np.float16]
    previous: NDArray[np.int32]
    current: NDArray[np.int32]
    top_tokens: NDArray[np.int32]
    top_probabilities: NDArray[np.float32]

    def commit(self, directory: Path, block: int) -> None:
        """Writes the block; raises OSError."""
        table = {
            "previous": self.previous,
            "current": self.current,
            "next_tokens": self.top_tokens,
            "probabilities": self.top_probabilities,
        }
        blocks.commit(block_path(directory, block), blocks.pack({"vectors": self.vectors}), blocks.pack(table))


def block_path(directory: Path, block: int) -> Path:
    """Where a block lies among the embedded ones."""
    return directory / f"block-{block:06d}.block"


def load_vectors(directory: Path, block: int) -> NDArray[np.float32] | NDArray[np.float16]:
    """States or keys of a block."""
    return blocks.unpack(blocks.load(block_path(directory, block), _VECTORS))["vectors"]


def load_table(directory: Path, block: int) -> dict[str, NDArray[Any]]:
    """What `TokenTableBuilder.add` takes of a block."""
    return blocks.unpack(blocks.load(block_path(directory, block), _TABLE))
