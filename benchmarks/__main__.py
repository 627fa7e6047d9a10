"""The program: `python -m benchmarks` measures what was asked for and prints tables; files take the same results.

Everything that is compared is measured in turn within one run. Times need a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from benchmarks import codec_sizes, growth, overload, peers, throughput
from benchmarks.report import Results, as_html, as_text
from benchmarks.stores import Spec, datastore
from decoder_client.cache_folder import cache_folder

PARTS = ("sizes", "codecs", "peers", "throughput", "partitions", "overload")


def main(arguments: list[str] | None = None) -> int:
    """Runs the parts asked for."""
    options = _parser().parse_args(arguments)
    folder = options.folder or cache_folder() / "benchmarks"
    main_size = options.entries[-1] if options.main is None else options.main
    results = Results(about=_about(options))
    if "sizes" in options.parts:
        for entries in options.entries:
            _say(f"sizes: {entries:,} entries")
            results.sizes.append(growth.measure(folder, entries, options.calls))
    if "codecs" in options.parts:
        _say("codecs")
        results.codecs = codec_sizes.measure(folder, main_size, min(options.calls, 500))
    if "peers" in options.parts:
        _say("peers")
        spec = Spec(main_size)
        results.peers, results.missing = peers.measure(datastore(folder, spec)[0], spec, options.calls)
    if "throughput" in options.parts:
        _say("throughput")
        path, _ = datastore(folder, Spec(main_size))
        results.faiss_per_s = throughput.faiss_per_s(path, options.seconds)
        results.loads = throughput.against_streams(path, options.streams, options.seconds)
    if "partitions" in options.parts:
        _say("partitions")
        paths = [datastore(folder, Spec(main_size, partitions=number))[0] for number in options.partitions]
        results.partitions = throughput.against_partitions(paths, max(options.streams), options.seconds)
    if "overload" in options.parts:
        _say("overload")
        path, _ = datastore(folder, Spec(main_size))
        results.overloads = overload.measure(path, options.seconds)
    print(as_text(results))
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(results), indent=1) + "\n")
    if options.html is not None:
        options.html.write_text(as_html(results))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks of the retrieval service.")
    parser.add_argument("--parts", type=_names, default=PARTS, help=f"some of {','.join(PARTS)}; default: all")
    parser.add_argument(
        "--entries", type=_numbers, default=(100_000, 1_000_000),
        help="sizes of datastores, with commas; default: 100000,1000000",
    )  # fmt: skip
    parser.add_argument("--main", type=int, help="size of the other parts; default: the last of --entries")
    parser.add_argument("--calls", type=int, default=2000, help="of every kind; default: 2000")
    parser.add_argument("--streams", type=_numbers, default=throughput.STREAMS, help="default: 1,2,4,8,16")
    parser.add_argument("--partitions", type=_numbers, default=(1, 2, 4), help="default: 1,2,4")
    parser.add_argument("--seconds", type=float, default=5.0, help="of every load; default: 5")
    parser.add_argument("--folder", type=Path, help="keeps the datastores; default: the cache folder")
    parser.add_argument("--json", type=Path, help="write everything here")
    parser.add_argument("--html", type=Path, help="write a page with tables and a plot here")
    return parser


def _numbers(written: str) -> tuple[int, ...]:
    numbers = tuple(int(number) for number in written.split(","))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("numbers of 1 or more are expected")
    return numbers


def _names(written: str) -> tuple[str, ...]:
    names = tuple(written.split(","))
    if not set(names) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"some of {','.join(PARTS)} are expected, not {written}")
    return names


def _about(options: argparse.Namespace) -> dict[str, str]:
    packages = {package: version(package) for package in ("faiss-cpu", "grpcio", "numpy")}
    return {
        "python": platform.python_version(),
        **packages,
        "processor": platform.machine(),
        "cores": str(os.cpu_count()),
        "calls": str(options.calls),
    }


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
