"""What makes a build the build that it is: its files as they lie there, and the id that follows from them.

Knows manifests' records; not how or from what a build is made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from dresd.identity import KeyRecipe, ModelIdentity
from retriever_service.datastore.manifest import DATASET_FILES, FileRecord, PartitionRecord


def dataset_files(directory: Path) -> dict[str, FileRecord]:
    """Measures the files of the whole datastore, which are all there but the manifest; raises OSError."""
    return {name: FileRecord.of(directory / name) for name in DATASET_FILES}


def build_id_of(
    recipe: KeyRecipe, model: ModelIdentity, files: Mapping[str, FileRecord], partitions: Sequence[PartitionRecord]
) -> str:
    """32 hex digits; equal content gives an equal id."""
    content = [
        asdict(recipe),
        model.weights_fingerprint,
        {name: record.sha256 for name, record in files.items()},
        [partition.model_dump() for partition in partitions],
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
