"""What a datastore consists of, in numbers: sizes, balance, skew, recall, provenance.

Plain dataclasses, so that `dataclasses.asdict` makes JSON of them; how people see them is the command line's matter.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore.files import parse_tensors
from retriever_service.datastore.manifest import MANIFEST_FILE, REDUCER_FILE, Manifest
from retriever_service.datastore.store import Datastore

_HEAVIEST = 10
_RANKS = 40


@dataclass(frozen=True, slots=True)
class PartitionInspection:
    """One partition: `bytes` of its segments' files, `share` of all entries, `recall` weighted by entries."""

    index: int
    segments: int
    num_entries: int
    num_tokens: int
    bytes: int
    share: float
    recall: float


@dataclass(frozen=True, slots=True)
class TokenWeight:
    """A next token and its number of entries."""

    token: int
    entries: int


@dataclass(frozen=True, slots=True)
class TokenRank:
    """The token with the `rank`-th most entries (from 1), and the share of all that it and those before it have."""

    rank: int
    entries: int
    share: float


@dataclass(frozen=True, slots=True)
class ReducerInspection:
    """What the reducer's file says of its fit; None where it does not.

    Attributes:
        explained_variance: share of the hidden states' variance (each number z-scored) that keys keep.
        num_samples: states it was fitted on.
    """

    explained_variance: float | None
    num_samples: int | None


@dataclass(frozen=True, slots=True)
class TokenSkew:
    """How entries spread over next tokens.

    Attributes:
        num_tokens: next tokens that have entries.
        split_tokens: those that lie in several partitions.
        median: entries of the middle token; p90, p99 and max likewise.
        heaviest: the tokens with the most entries, falling.
        ranks: some of all tokens by falling entries, ever fewer of them, the first and the last included.
    """

    num_tokens: int
    split_tokens: int
    median: float
    p90: float
    p99: float
    max: int
    heaviest: list[TokenWeight]
    ranks: list[TokenRank]


@dataclass(frozen=True, slots=True)
class Inspection:
    """A datastore in numbers.

    Attributes:
        path: its folder.
        manifest: what it says about itself, files and partitions left out (JSON types).
        num_entries: in all partitions.
        total_bytes: of all files.
        bytes_per_entry: of the partitions' files; what one more entry costs.
        bytes_by_file: bytes by file name, summed over partitions.
        balance: entries of the largest partition divided by the mean; 1 is perfect.
        recall: share of the true nearest keys found, measured by the build, weighted by entries.
        reducer: how well keys describe the hidden states that they are made of.
        partitions: one each.
        tokens: how entries spread over next tokens.
    """

    path: str
    manifest: dict[str, object]
    num_entries: int
    total_bytes: int
    bytes_per_entry: float
    bytes_by_file: dict[str, int]
    balance: float
    recall: float
    reducer: ReducerInspection
    partitions: list[PartitionInspection]
    tokens: TokenSkew


def inspect(path: Path | str) -> Inspection:
    """Describes a datastore; sizes of files are checked, their content is not hashed. Raises DatastoreError."""
    store = Datastore.open(path, verify_checksums=False)
    manifest = store.manifest
    bytes_by_file = Counter({name: record.size for name, record in manifest.files.items()})
    bytes_by_file[MANIFEST_FILE] = (store.path / MANIFEST_FILE).stat().st_size
    dataset_bytes = bytes_by_file.total()
    for partition in manifest.partitions:
        for segment in partition.segments:
            bytes_by_file.update({name: record.size for name, record in segment.files.items()})
    total_bytes = bytes_by_file.total()
    counts = store.entries_by_token()
    partitions = [_inspect_partition(store, number) for number in store.served_partitions]
    mean = manifest.num_entries / len(partitions)
    return Inspection(
        path=str(store.path),
        manifest=_about(manifest),
        num_entries=manifest.num_entries,
        total_bytes=total_bytes,
        bytes_per_entry=(total_bytes - dataset_bytes) / max(manifest.num_entries, 1),
        bytes_by_file=dict(sorted(bytes_by_file.items())),
        balance=max(partition.num_entries for partition in partitions) / mean if mean else 1.0,
        recall=manifest.recall,
        reducer=_inspect_reducer(store),
        partitions=partitions,
        tokens=_skew(counts, split_tokens=int((np.diff(store.routing.offsets) > 1).sum())),
    )


def _about(manifest: Manifest) -> dict[str, object]:
    about: dict[str, object] = manifest.model_dump(
        mode="json", exclude={"files", "partitions", "model", "key_recipe", "num_entries"}
    )
    return {**about, "model": asdict(manifest.model), "key_recipe": asdict(manifest.key_recipe)}


def _inspect_reducer(store: Datastore) -> ReducerInspection:
    tensors = parse_tensors(store.path / REDUCER_FILE, store.reducer_bytes)
    explained, samples = tensors.get("explained_variance"), tensors.get("num_samples")
    return ReducerInspection(
        None if explained is None or explained.size != 1 else float(explained.flat[0]),
        None if samples is None or samples.size != 1 else int(samples.flat[0]),
    )


def _inspect_partition(store: Datastore, number: int) -> PartitionInspection:
    record = store.manifest.partitions[number]
    tokens = [opened.segment.tokens for opened in store.segments[number]]
    return PartitionInspection(
        index=number,
        segments=len(record.segments),
        num_entries=record.num_entries,
        num_tokens=len(np.unique(np.concatenate(tokens))) if tokens else 0,
        bytes=sum(file.size for segment in record.segments for file in segment.files.values()),
        share=record.num_entries / max(store.num_entries, 1),
        recall=_weighted([(segment.recall, segment.num_entries) for segment in record.segments]),
    )


def _skew(counts: NDArray[np.int64], *, split_tokens: int) -> TokenSkew:
    present = counts[counts > 0]
    median, p90, p99 = np.percentile(present, [50, 90, 99]).tolist() if len(present) else (0.0, 0.0, 0.0)
    heaviest = np.argsort(-counts, kind="stable")[: min(_HEAVIEST, len(present))]
    return TokenSkew(
        num_tokens=len(present),
        split_tokens=split_tokens,
        median=median,
        p90=p90,
        p99=p99,
        max=int(counts.max(initial=0)),
        heaviest=[TokenWeight(token, int(counts[token])) for token in heaviest.tolist()],
        ranks=_ranks(np.sort(present)[::-1]),
    )


def _ranks(falling: NDArray[np.int64]) -> list[TokenRank]:
    if len(falling) == 0:
        return []
    places = np.unique(np.round(np.geomspace(1, len(falling), _RANKS)).astype(np.int64)) - 1
    shares = np.cumsum(falling) / falling.sum()
    return [TokenRank(place + 1, int(falling[place]), float(shares[place])) for place in places.tolist()]


def _weighted(recalls: list[tuple[float, int]]) -> float:
    entries = sum(number for _, number in recalls)
    return sum(recall * number for recall, number in recalls) / entries if entries else 1.0
