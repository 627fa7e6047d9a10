"""Synthetic datastores on disk, built once and kept; a build's time and memory are kept beside each.

`python -m benchmarks.stores FOLDER ENTRIES CODEC PARTITIONS SEED` is the build, so that its memory is a process's own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from benchmarks.synthetic import BLOCK, DIMS, WIDTH, Generator
from dresd.identity import KeyRecipe, ModelIdentity
from dresd.routing import RoutingTable
from retriever_service.datastore import (
    REDUCER_FILE,
    ROUTING_FILE,
    TOKEN_TABLE_FILE,
    CorpusProvenance,
    DatastoreError,
    EntryBatch,
    Manifest,
    PartitionRecord,
    TokenTableBuilder,
    assign_tokens,
    dataset_files,
    read_manifest,
    save_routing,
    save_token_table,
    segment_directory,
    split_entries,
    token_dtype,
    tune_built,
    write_manifest,
    write_partition,
)

_WATCH_S = 0.02
_FINGERPRINT = "0" * 64


@dataclass(frozen=True)
class Spec:
    """What to build: `entries` of the generator with `seed`, coded with `codec`, in `partitions`."""

    entries: int
    codec: str = "sq8"
    partitions: int = 1
    seed: int = 0

    @property
    def name(self) -> str:
        """Of the folder, and the build id."""
        return f"synthetic-{self.entries}-{self.codec}-{self.partitions}-{self.seed}"


@dataclass(frozen=True)
class Build:
    """What a build took: seconds; most bytes of memory of its own, and with what it had mapped."""

    seconds: float
    own_bytes: int
    resident_bytes: int


def datastore(folder: Path, spec: Spec) -> tuple[Path, Build]:
    """The datastore's path, and what its build took when it was built."""
    path, record = folder / spec.name, folder / f"{spec.name}.json"
    if not (_is_built(path, spec) and record.is_file()):
        arguments = [str(folder), str(spec.entries), spec.codec, str(spec.partitions), str(spec.seed)]
        subprocess.run([sys.executable, "-m", "benchmarks.stores", *arguments], check=True)
    return path, Build(**json.loads(record.read_text()))


def _is_built(path: Path, spec: Spec) -> bool:
    try:
        return read_manifest(path).build_id == spec.name
    except DatastoreError:
        return False


def write(path: Path, spec: Spec) -> None:
    """Writes the datastore; what is there is replaced."""
    generator = Generator(spec.seed)
    shutil.rmtree(path, ignore_errors=True)  # of another version, or interrupted
    path.mkdir()
    (path / REDUCER_FILE).write_bytes(
        save({"weight": np.eye(DIMS, dtype=np.float32), "bias": np.zeros(DIMS, np.float32)})
    )
    counts = np.zeros(generator.vocab_size, np.int64)
    for batch in generator.entries(spec.entries):
        counts += np.bincount(batch.next_tokens, minlength=len(counts))
    routing = assign_tokens(counts, spec.partitions)
    save_routing(routing, path / ROUTING_FILE)
    save_token_table(path / TOKEN_TABLE_FILE, TokenTableBuilder().build())
    partitions = []
    for number in range(spec.partitions):
        segment = write_partition(
            path / segment_directory(number),
            _entries_of(generator, spec.entries, routing, number),
            codec=spec.codec,
            vocab_size=generator.vocab_size,
            num_entries_total=spec.entries,
            seed=spec.seed,
        )
        partitions.append(PartitionRecord(index=number, segments=[segment] if segment.num_entries else []))
    files = dataset_files(path)
    manifest = Manifest(
        build_id=spec.name,
        model=ModelIdentity("synthetic", "", _FINGERPRINT, _FINGERPRINT, DIMS, generator.vocab_size),
        key_recipe=KeyRecipe("last", "l2", DIMS, files[REDUCER_FILE].sha256),
        corpus=CorpusProvenance(files=[], documents=0, tokens=0),
        continuation_length=WIDTH,
        left_context_length=WIDTH,
        token_dtype=token_dtype(generator.vocab_size),
        codec=spec.codec,
        nprobe=0,
        num_entries=spec.entries,
        files=files,
        partitions=partitions,
        versions={"numpy": np.__version__},
        command="benchmarks",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    write_manifest(path, manifest)
    tune_built(path)


def _entries_of(generator: Generator, number: int, routing: RoutingTable, partition: int) -> Iterator[EntryBatch]:
    for block, batch in enumerate(generator.entries(number)):
        ordinals = block * BLOCK + np.arange(len(batch))
        yield batch.select(split_entries(routing, batch.next_tokens, ordinals) == partition)


def memory_of(process: str | int = "self") -> tuple[int, int]:
    """Bytes of a process: its own, and with the pages it has mapped."""
    status = Path(f"/proc/{process}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return tuple(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmRSS"))  # type: ignore[return-value]


def main(arguments: list[str]) -> None:
    """Builds what is asked for."""
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    spec = Spec(int(arguments[1]), arguments[2], int(arguments[3]), int(arguments[4]))
    most = [0, 0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_WATCH_S):
            most[:] = map(max, most, memory_of())

    thread = threading.Thread(target=watch)
    thread.start()
    begun = time.perf_counter()
    try:
        write(folder / spec.name, spec)
    finally:
        done.set()
        thread.join()
    build = Build(time.perf_counter() - begun, *most)
    (folder / f"{spec.name}.json").write_text(json.dumps(asdict(build)))


if __name__ == "__main__":
    main(sys.argv[1:])
