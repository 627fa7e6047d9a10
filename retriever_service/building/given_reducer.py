"""The reducer of another datastore, for keys that mean the same as its. Knows manifests and reducers; no corpus."""

from __future__ import annotations

from pathlib import Path

from dresd.identity import ModelIdentity, differences
from retriever_service.building.errors import BuildError
from retriever_service.datastore import REDUCER_FILE, DatastoreError, current_build, read_manifest, read_reducer


def reducer_of(datastore: Path, model: ModelIdentity, dims: int) -> bytes:
    """The file of a build's reducer, or that of a root's current build.

    Raises:
        BuildError: it cannot be read, or is of another model or as many dims; with both values.
    """
    try:
        place = current_build(datastore)
        manifest = read_manifest(place)
        differ = differences(manifest.model, model)
        if manifest.key_recipe.dims != dims:
            differ.append(f"dims: {manifest.key_recipe.dims} against {dims}")
        if differ:
            raise BuildError(
                f"'{datastore}' and this build have other keys: {'; '.join(differ)}. "
                "Give the model and the --dims that it was built with."
            )
        return read_reducer(place / REDUCER_FILE, manifest)
    except DatastoreError as error:
        raise BuildError(str(error)) from error
