"""The reducer, fitted on the states of the sample's blocks, one block in memory at a time."""

from __future__ import annotations

from pathlib import Path

from decoder_client.reducer import ReducerError, ReducerFit
from retriever_service.building import blocks
from retriever_service.building.embedded import load_vectors
from retriever_service.building.errors import BuildError


def fit_reducer(embedded: Path, sample_blocks: int, place: Path, *, hidden_size: int, dims: int) -> None:
    """Fits the reducer and commits it.

    Raises:
        BuildError: the states do not make a reducer.
    """
    fit = ReducerFit(hidden_size)
    for block in range(sample_blocks):
        fit.update(load_vectors(embedded, block))
    try:
        reducer = fit.finish(dims)
    except ReducerError as error:
        raise BuildError(f"Keys cannot be fitted: {error}. Give more and other text, or smaller --dims.") from error
    blocks.commit(place, reducer.to_bytes())
