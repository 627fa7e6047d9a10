"""Everything that retrieval and the text itself hold of one sequence's next tokens, as weighted paths.

Knows arrays of paths; neither where they came from nor what becomes of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.local import LocalIndex, LocalPlaces
from decoder_client.drafting.retrieved import RetrievedPaths
from dresd.draft_tree import PAD

_MOST = 1e20
"""Of a path: a message may hold a mass that no float32 holds once it is weighted and added up."""


DENSE, SPARSE, LOCAL = range(3)
SOURCES = ("dense", "sparse", "context")
"""The sources that hold masses, by column."""

# Logarithms of a place's mass, fitted with the priors in `weights`.
_LOCAL_BY_MATCH = np.array(
    [0.43, 1.08, 1.47, 1.64, 1.79, 1.87, 1.97, 2.06, 2.21, 2.33, 2.42, 2.54, 2.70, 2.86, 3.02, 3.25, 3.94]
)
_LOCAL_BY_SIMILARITY = 3.6
_LOCAL_BY_AGE = 0.14
# The same where keys are unknown.
_PLAIN_LOCAL_BY_MATCH = np.array(
    [-0.85, 0.60, 1.23, 1.42, 1.62, 1.73, 1.83, 1.94, 2.11, 2.24, 2.33, 2.42, 2.58, 2.74, 2.90, 3.12, 3.83]
)
_PLAIN_LOCAL_BY_AGE = -0.09


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


def gather(
    index: LocalIndex, places: LocalPlaces | None, retrieved: RetrievedPaths | None, *, max_depth: int
) -> Evidence:
    """What is known after the newest token of a text of at least one token.

    Args:
        index: the text.
        places: its own earlier places, found for paths of `max_depth`; None for none.
        retrieved: what the retriever gave; None for nothing.
        max_depth: of the paths.
    """
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


def local_masses(places: LocalPlaces) -> NDArray[np.float64]:
    """float64 [m]: by the length of the match, the similarity of the keys where known, and the age."""
    ages = np.log1p(places.ages)
    if places.similarities is None:
        logs = _PLAIN_LOCAL_BY_MATCH[places.matches] + _PLAIN_LOCAL_BY_AGE * ages
    else:
        away = places.similarities.astype(np.float64) - 1.0
        logs = _LOCAL_BY_MATCH[places.matches] + _LOCAL_BY_SIMILARITY * away + _LOCAL_BY_AGE * ages
    masses: NDArray[np.float64] = np.exp(logs)
    return masses
