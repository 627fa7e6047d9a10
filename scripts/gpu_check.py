"""Checks the whole path on this machine's GPU in under five minutes: build, serve, decode; prints tokens a second.

    python scripts/gpu_check.py [--model M] [--json FILE]

Each step is a command of the package. Without a GPU it takes fewer and shorter answers, so that the check itself can be
checked. With one it also compares k-means on the GPU with k-means on the CPU, where faiss-gpu is installed. The last
thing printed is a table; `--json` keeps all that was measured. Exit code 1: a step failed, or decoding with a datastore
gave other tokens than plain decoding.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAIN, TEST = ROOT / "examples" / "stdlib" / "train.jsonl", ROOT / "examples" / "stdlib" / "test.jsonl"
READY = "dresd-retriever ready on "


@dataclass(frozen=True, slots=True)
class Size:
    """How much is answered: prompts whose answers are stored, prompts decoded, tokens of an answer."""

    stored: int
    decoded: int
    max_new_tokens: int


ON_GPU, ON_CPU = Size(153, 20, 128), Size(12, 3, 32)


@dataclass
class Report:
    """What was measured.

    Attributes:
        device: the GPU's name, or "cpu".
        size: how much was answered.
        seconds: of each step.
        entries: of the datastore.
        recall: of its searches.
        methods: of each drafter: tokens a second and a forward pass, answers equal to plain decoding's, of how many.
        clustering: k-means on the GPU against the CPU; None without faiss-gpu.
        problems: what went wrong.
    """

    device: str
    size: Size
    seconds: dict[str, float] = field(default_factory=dict)
    entries: int = 0
    recall: float = 0.0
    methods: dict[str, dict[str, float]] = field(default_factory=dict)
    clustering: dict[str, float] | None = None
    problems: list[str] = field(default_factory=list)


class StepError(Exception):
    """A step failed, and nothing after it can be done."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="M", help="folder or hub name; default: the demo's SmolLM2-135M-Instruct")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all that was measured to this file")
    parser.add_argument("--small", action="store_true", help="as few answers as without a GPU")
    arguments = parser.parse_args()
    device = gpu_name()
    report = Report(device or "cpu", ON_GPU if device and not arguments.small else ON_CPU)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dresd-gpu-check-") as scratch:
        try:
            if device:
                check_clustering(report)
            check(arguments.model or prepared_model(report), Path(scratch), report)
        except StepError as error:
            report.problems.append(str(error))
    report.seconds["whole"] = round(time.monotonic() - started, 1)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(asdict(report), indent=1) + "\n", "utf-8")
    print("\n".join(lines(report)))
    return 1 if report.problems else 0


def gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def check_clustering(report: Report) -> None:
    """K-means as the index does it, on both processors: how well each describes the same keys."""
    import numpy as np

    from retriever_service.datastore.clustering import gpu_count, kmeans

    if gpu_count() == 0:
        return
    keys = np.random.default_rng(0).normal(size=(200_000, 64)).astype(np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    report.clustering = {}
    for name, gpus in (("cpu", 0), ("gpu", gpu_count())):
        begun = time.monotonic()
        centroids = kmeans(keys, 447, seed=0, gpus=gpus)
        report.clustering[f"{name}_seconds"] = round(time.monotonic() - begun, 2)
        nearest = np.concatenate([(part @ centroids.T).max(axis=1) for part in np.array_split(keys, 20)])
        report.clustering[f"{name}_mean_cosine"] = round(float(nearest.mean()), 5)
    if abs(report.clustering["gpu_mean_cosine"] - report.clustering["cpu_mean_cosine"]) > 0.005:
        report.problems.append("Clusters of the GPU describe the keys otherwise than those of the CPU.")


def prepared_model(report: Report) -> str:
    script = ROOT / "scripts" / "prepare_model.py"
    return run("model", [sys.executable, str(script)], report).strip().splitlines()[-1]


def check(model: str, scratch: Path, report: Report) -> None:
    size, store, results = report.size, scratch / "store", scratch / "bench.json"
    corpus = first_lines(TRAIN, size.stored, scratch / "train.jsonl")
    prompts = first_lines(TEST, size.decoded, scratch / "test.jsonl")
    tokens = ["--max-new-tokens", str(size.max_new_tokens)]
    retriever = [sys.executable, "-m", "retriever_service.cli"]
    build = [*retriever, "build", "--model", model, "--corpus", str(corpus), "--respond", *tokens, "--json"]
    built = json.loads(run("build", [*build, "--out", str(store)], report))
    report.entries, report.recall = built["entries"], round(built["recall"], 4)
    run("verify", [*retriever, "verify", str(store)], report)
    with served(store) as address:
        bench = [sys.executable, "-m", "decoder_client.cli", "bench", "--model", model, "--retriever", address]
        bench += ["--datastore", str(store), "--prompts", str(prompts), *tokens, "--json", str(results)]
        run("decode", [*bench, "--methods", "plain,dresd,dresd-auto", "--nodes", "32"], report, wrong_is_told=True)
    if not results.exists():
        raise StepError("Decoding measured nothing.")
    for method in json.loads(results.read_text("utf-8"))["methods"]:
        stats = [answer["stats"] for answer in method["answers"]]
        report.methods[method["label"]] = {
            "tokens_per_s": round(sum(one["tokens"] for one in stats) / sum(one["total_s"] for one in stats), 2),
            "tokens_per_forward": round(method["tokens_per_forward"]["value"], 3),
            "identical": method["identical"],
            "compared": method["compared"],
        }


def first_lines(source: Path, number: int, target: Path) -> Path:
    target.write_text("".join(source.read_text("utf-8").splitlines(keepends=True)[:number]), "utf-8")
    return target


def run(name: str, command: list[str], report: Report, *, wrong_is_told: bool = False) -> str:
    """What a command prints; its progress goes to the terminal."""
    print(f"== {name}", file=sys.stderr, flush=True)
    begun = time.monotonic()
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    report.seconds[name] = round(time.monotonic() - begun, 1)
    if done.returncode != 0 and not wrong_is_told:
        raise StepError(f"The step {name!r} failed with exit code {done.returncode}; its message is above.")
    if done.returncode != 0:
        report.problems.append(f"The step {name!r} ended with exit code {done.returncode}; its message is above.")
    return done.stdout


@contextlib.contextmanager
def served(datastore: Path) -> Iterator[str]:
    """The address of a server of a datastore, in a process of its own."""
    command = [sys.executable, "-m", "retriever_service.cli", "serve", str(datastore), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        line = "" if process.stdout is None else process.stdout.readline().strip()
        if not line.startswith(READY):
            raise StepError("The retriever did not start; its message is above.")
        yield line.removeprefix(READY)
    finally:
        process.terminate()
        process.wait(timeout=30)


def lines(report: Report) -> Iterator[str]:
    size = report.size
    yield f"device  {report.device}"
    yield f"store   {report.entries:,} entries of {size.stored} answers, recall@50 {report.recall:.3f}"
    yield "seconds " + ", ".join(f"{name} {seconds:g}" for name, seconds in report.seconds.items())
    if report.clustering is not None:
        yield "k-means " + ", ".join(f"{name} {value:g}" for name, value in report.clustering.items())
    yield ""
    yield f"{'method':12} {'tokens/s':>9} {'tokens per forward':>19} {'identical':>10}"
    for label, one in report.methods.items():
        same = f"{one['identical']:.0f} of {one['compared']:.0f}" if one["compared"] else "-"
        yield f"{label:12} {one['tokens_per_s']:9.1f} {one['tokens_per_forward']:19.2f} {same:>10}"
    yield from (f"PROBLEM: {problem}" for problem in report.problems)


if __name__ == "__main__":
    raise SystemExit(main())
