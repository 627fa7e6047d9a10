"""Everything that retrieval and the text itself hold of one sequence's next tokens, as weighted paths.

Knows arrays of paths; neither where they came from nor what becomes of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.local import LocalIndex
from decoder_client.drafting.retrieved import RetrievedPaths
from decoder_client.drafting.weights import DENSE, LOCAL, SOURCES, SPARSE, local_masses
from dresd.draft_tree import PAD

_MOST = 1e20
"""Of a path: a message may hold a mass that no float32 holds once it is weighted and added up."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the sources hold of one sequence's next tokens.

    Attributes:
        paths: int32 [m, depth], continuations, `PAD` from the end on.
        masses: float64 [m, 3], by source.
        previous: the token before the newest one, -1 for none.
        newest: the token just chosen.
    """

    paths: NDArray[np.int32]
    masses: NDArray[np.float64]
    previous: int
    newest: int


def gather(index: LocalIndex, retrieved: RetrievedPaths | None, *, max_places: int, max_depth: int) -> Evidence:
    """What is known after the newest token of a text of at least one token.

    Args:
        index: the text and its keys.
        retrieved: what the retriever gave; None for nothing.
        max_places: earlier places of the text that are looked at; 0 for none.
        max_depth: of the paths.
    """
    places = index.places(max_places=max_places, depth=max_depth) if max_places else None
    given = 0 if retrieved is None else len(retrieved.paths)
    found = 0 if places is None else len(places.paths)
    paths = np.full((given + found, max_depth), PAD, np.int32)
    masses = np.zeros((given + found, len(SOURCES)))
    if retrieved is not None:
        depth = min(max_depth, retrieved.paths.shape[1])
        paths[:given, :depth] = retrieved.paths[:, :depth]
        masses[:given, [DENSE, SPARSE]] = np.minimum(retrieved.masses, _MOST)
    if places is not None:
        paths[given:] = places.paths
        masses[given:, LOCAL] = local_masses(places)
    previous, newest = index.last_two
    return Evidence(paths, masses, previous, newest)
