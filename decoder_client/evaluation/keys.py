"""All keys of a datastore as one array, and searches over all of them, whatever the next token.

This is what dense retrieval needs without our grouping by next token. Knows the datastore's index and ScaNN; not what
neighbours are used for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from decoder_client.evaluation.baselines.missing import MissingPackageError
from retriever_service.datastore import Datastore, keys_by_id

NeighborSearch = Callable[[NDArray[np.float32]], NDArray[np.int64]]
"""key float32 [dims] -> ids of its nearest entries by cosine, int64 [at most k], nearest first."""


def all_keys(datastore: Datastore) -> NDArray[np.float32]:
    """float32 [n, dims]: all entries' keys in the order of their ids, as the codec kept them, of length one or zero."""
    keys = keys_by_id(datastore, np.arange(datastore.num_entries))
    lengths = np.linalg.norm(keys, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    keys /= lengths
    return keys


def exact_search(keys: NDArray[np.float32], neighbors: int) -> NeighborSearch:
    """Compares a query with every key."""
    import faiss

    index = faiss.IndexFlatIP(keys.shape[1])
    index.add(keys)
    wanted = min(neighbors, len(keys))

    def search(key: NDArray[np.float32]) -> NDArray[np.int64]:
        ids: NDArray[np.int64] = index.search(key[None], wanted)[1][0]
        return ids

    return search


def scann_search(keys: NDArray[np.float32], neighbors: int) -> NeighborSearch:
    """ScaNN with the settings that DReSD publishes.

    Raises:
        MissingPackageError: ScaNN is not installed.
    """
    try:
        from scann import scann_ops_pybind
    except ModuleNotFoundError as error:
        raise MissingPackageError("dresd-paper with --ann scann", 'pip install "dresd[scann]"') from error
    root = int(np.sqrt(len(keys)))
    searcher = (
        scann_ops_pybind.builder(keys, neighbors, "dot_product")
        .tree(num_leaves=root * 5, num_leaves_to_search=250, training_sample_size=min(root * 250, len(keys)))
        .score_ah(2, anisotropic_quantization_threshold=0.2)
        .reorder(250)
        .build()
    )

    def search(key: NDArray[np.float32]) -> NDArray[np.int64]:
        ids, _ = searcher.search(key)
        return np.asarray(ids, np.int64)

    return search
