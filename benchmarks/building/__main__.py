"""The program: `python -m benchmarks.building` (`make bench-build`) prints tables; a file takes the same results.

Times need a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

from benchmarks.building import embedding
from benchmarks.building.driver import TABLE_SHARE
from benchmarks.building.jobs import commit_documents, commit_reducer, natural_lengths, planned
from decoder_client.cache_folder import cache_folder
from decoder_client.target_model import load_target_model

PARTS = ("embed", "rest", "scaling")
_INDEXED = 3
"""Times that an index is made with one worker, and with two in turn; the medians are compared."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Shuffle, index and publish of synthetic entries.

    Attributes:
        entries: of them.
        cores, partitions: that they were spread over.
        seconds: of each stage.
        driver_bytes: memory of the driver, its own.
        together_bytes: of all processes.
    """

    entries: int
    cores: int
    partitions: int
    seconds: dict[str, float]
    driver_bytes: int
    together_bytes: int

    @property
    def per_core(self) -> float:
        """Entries a second and core."""
        return self.entries / sum(self.seconds.values()) / self.cores


def main(arguments: list[str] | None = None) -> int:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.building", description="Benchmarks of builds.")
    parser.add_argument("--parts", type=_names, default=PARTS, help=f"some of {','.join(PARTS)}; default: all")
    parser.add_argument("--model", type=Path, help="default: the one that `make model` prepares")
    parser.add_argument("--tokens", type=int, default=40_000, help="to embed; default: 40000")
    parser.add_argument("--entries", type=_numbers, default=(100_000, 1_000_000, 10_000_000), help="with commas")
    parser.add_argument("--partitions", type=int, default=4, help="default: 4")
    parser.add_argument("--folder", type=Path, help="where the work is done; default: a temporary one")
    parser.add_argument("--json", type=Path, help="write everything here")
    options = parser.parse_args(arguments)
    model = options.model or cache_folder() / "SmolLM2-135M-Instruct"
    folder = Path(mkdtemp(prefix="bench-build-", dir=options.folder))
    results: dict[str, object] = {}
    try:
        if "embed" in options.parts:
            results["embed"] = _embed(folder / "embed", model, options.tokens)
        if "rest" in options.parts:
            results["rest"] = [asdict(rest) for rest in _rest(folder, options.entries, options.partitions)]
        if "scaling" in options.parts:
            results["scaling"] = _scaling(folder, model, options.tokens, options.entries, options.partitions)
    finally:
        shutil.rmtree(folder)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def _embed(folder: Path, model: Path, tokens: int) -> dict[str, object]:
    found = embedding.measure(folder, model, tokens, TABLE_SHARE, os.cpu_count() or 1)
    print("| tokens | tokens/s | bare loop tokens/s | share | padding |\n| --- | --- | --- | --- | --- |")
    print(
        f"| {found.tokens:,} | {found.tokens_per_s:,.0f} | {found.bare_tokens_per_s:,.0f} | {found.share:.3f} "
        f"| {found.padding:.3f} |"
    )
    print(f"\n(likely next tokens of {TABLE_SHARE:.0%} of the positions, as in a corpus of 10,000,000 tokens)\n")
    return {**asdict(found), "share": found.share}


def _rest(folder: Path, sizes: tuple[int, ...], partitions: int) -> list[Rest]:
    cores = os.cpu_count() or 1
    print("| entries | partitions | shuffle s | index s | publish s | entries/s/core | driver MiB | all MiB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    found = []
    for entries in sizes:
        found.append(_rest_of(folder / f"rest-{entries}", entries, cores, partitions))
        rest = found[-1]
        times = " | ".join(f"{rest.seconds[name]:.1f}" for name in ("shuffle", "index", "publish"))
        print(
            f"| {entries:,} | {partitions} | {times} | {rest.per_core:,.0f} | {rest.driver_bytes / 2**20:.0f} "
            f"| {rest.together_bytes / 2**20:,.0f} |",
            flush=True,
        )
    print()
    return found


def _rest_of(folder: Path, entries: int, cores: int, partitions: int) -> Rest:
    _make_embedded(folder, entries)
    told = _drive(folder, "rest", cores, 1, partitions)
    shutil.rmtree(folder)
    return Rest(entries, cores, partitions, told["seconds"], told["own"], told["together"])


def _make_embedded(folder: Path, entries: int) -> None:
    # A process of its own, whose memory is gone when the build begins.
    subprocess.run([sys.executable, "-m", "benchmarks.building.jobs", str(folder), str(entries)], check=True)


def _drive(folder: Path, stage: str, cores: int, workers: int, partitions: int, model: str = "") -> dict[str, Any]:
    numbers = map(str, (cores, workers, partitions))
    command = [sys.executable, "-m", "benchmarks.building.driver", str(folder), stage, *numbers]
    ended = subprocess.run([*command, *([model] if model else [])], check=True, stdout=subprocess.PIPE, text=True)
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


def _scaling(folder: Path, model: Path, tokens: int, sizes: tuple[int, ...], partitions: int) -> dict[str, object]:
    target = load_target_model(model, device="cpu", packed_linear=False)
    embed: dict[int, float] = {}
    index: dict[int, list[float]] = {1: [], 2: []}
    for workers in index:
        place = folder / f"embed-{workers}"
        commit_documents(place, natural_lengths(tokens), target.vocab_size)
        commit_reducer(place, target.hidden_size, 64)
        _drive(place, "embed", workers, workers, 1, str(model))
        embed[workers] = _steady_tokens_per_s(place, workers)
    entries = sizes[min(1, len(sizes) - 1)]
    place = folder / "index"
    _make_embedded(place, entries)
    for _ in range(_INDEXED):
        for workers, speeds in index.items():
            told = _drive(place, "rest", workers, 1, partitions)
            speeds.append(entries / told["seconds"]["index"])
            for name in ("shuffled", "records", "datastore"):
                shutil.rmtree(place / name)
    middle = {workers: median(speeds) for workers, speeds in index.items()}
    print("| stage | 1 worker | 2 workers | times |\n| --- | --- | --- | --- |")
    print(f"| embed, tokens/s | {embed[1]:,.0f} | {embed[2]:,.0f} | {embed[2] / embed[1]:.2f} |")
    print(f"| index, entries/s | {middle[1]:,.0f} | {middle[2]:,.0f} | {middle[2] / middle[1]:.2f} |\n")
    return {"embed": embed, "index": index}


def _steady_tokens_per_s(folder: Path, workers: int) -> float:
    """Between each worker's first block, about, and the last of all: without loading the model."""
    tokens = planned(folder).block_tokens()
    times = {int(path.stem.rpartition("-")[2]): path.stat().st_mtime for path in (folder / "embedded").glob("*.block")}
    order = sorted(times, key=times.__getitem__)
    return float(tokens[order[workers:]].sum() / (times[order[-1]] - times[order[workers - 1]]))


def _names(written: str) -> tuple[str, ...]:
    names = tuple(written.split(","))
    if not set(names) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"some of {','.join(PARTS)} are expected, not {written}")
    return names


def _numbers(written: str) -> tuple[int, ...]:
    numbers = tuple(int(number) for number in written.split(","))
    if min(numbers) < 100_000:
        raise argparse.ArgumentTypeError("numbers of 100000 or more are expected")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
