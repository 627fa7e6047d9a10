"""The reducer's file, which is handed to clients as it is: checked to be the one that made the keys.

What a reducer computes is no matter of a datastore; only that it maps states of the model's size to keys of ours.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.files import REBUILD_HINT, parse_tensors, read_bytes
from retriever_service.datastore.manifest import Manifest


def read_reducer(path: Path, manifest: Manifest) -> bytes:
    """The file's content; it is small, so it is always hashed.

    Raises:
        DatastoreError: it is not the reducer of the manifest's hash, or not float32 weights [dims, hidden_size] and
            bias [dims], all finite.
    """
    content = read_bytes(path)
    recipe, hidden_size = manifest.key_recipe, manifest.model.hidden_size
    if hashlib.sha256(content).hexdigest() != recipe.reducer_hash:
        raise DatastoreError(f"{path} is corrupt: its sha256 is not the manifest's.", REBUILD_HINT)
    tensors = parse_tensors(path, content)
    for name, shape in (("weight", (recipe.dims, hidden_size)), ("bias", (recipe.dims,))):
        tensor = tensors.get(name)
        if tensor is None or tensor.dtype != np.float32 or tensor.shape != shape or not np.isfinite(tensor).all():
            raise DatastoreError(
                f"{path} does not hold a reducer of {hidden_size} to {recipe.dims} numbers, as the manifest says.",
                REBUILD_HINT,
            )
    return content
