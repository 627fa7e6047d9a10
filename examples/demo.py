"""The whole path on a real model: build a datastore, serve it, decode with and without it.

SmolLM2-135M-Instruct answers the prompts in `stdlib/train.jsonl`, a local Ray job makes a datastore of its answers, the
retriever serves it in a process of its own, and the decoder answers the held-out prompts in `stdlib/test.jsonl` with
every method in turn. Each step is a command you can run yourself; it is printed first. The model and the datastore are
kept in the cache folder, so a second run goes straight to decoding.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRAIN, TEST = HERE / "stdlib" / "train.jsonl", HERE / "stdlib" / "test.jsonl"
BIN = Path(sys.executable).parent
MAX_NEW_TOKENS = "96"
RECIPE = 2
"""Counts up when a datastore of an earlier version could not be used any more."""
READY = "dresd-retriever ready on "


def announce(title: str, command: list[str]) -> None:
    print(f"\n== {title}\n   $ {shlex.join([Path(command[0]).name, *command[1:]])}", flush=True)


def run(title: str, command: list[str]) -> None:
    announce(title, command)
    started = time.monotonic()
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"{title} failed; its message is above")
    print(f"   {time.monotonic() - started:.0f} s", flush=True)


def prepare_model() -> Path:
    command = [sys.executable, str(HERE.parent / "scripts" / "prepare_model.py")]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit("the model could not be prepared; the message is above")
    return Path(done.stdout.strip().splitlines()[-1])


def build_datastore(model: Path) -> tuple[Path, Path]:
    """The datastore of the training prompts and the answers in it, from the cache if this recipe made them before."""
    recipe = hashlib.sha256(TRAIN.read_bytes() + f"{MAX_NEW_TOKENS} {RECIPE}".encode()).hexdigest()[:12]
    datastore = model.parent / f"demo-datastore-{recipe}"
    answers = datastore.with_suffix(".jsonl")
    retriever = str(BIN / "dresd-retriever")
    if datastore.exists() and answers.exists():
        run("Checking the datastore of an earlier run", [retriever, "verify", str(datastore)])
        return datastore, answers
    shutil.rmtree(datastore, ignore_errors=True)
    command = [retriever, "build", "--model", str(model), "--corpus", str(TRAIN), "--respond"]
    command += ["--max-new-tokens", MAX_NEW_TOKENS, "--answers-out", str(answers), "--out", str(datastore)]
    run(f"Building a datastore from the model's own answers to {TRAIN.name}", command)
    return datastore, answers


@contextlib.contextmanager
def served(datastore: Path) -> Iterator[str]:
    """Serves the datastore in a process of its own on a free port and yields its address."""
    command = [str(BIN / "dresd-retriever"), "serve", str(datastore), "--listen", "127.0.0.1:0"]
    announce("Serving it", command)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None  # noqa: S101 - Popen was asked for a pipe
        line = process.stdout.readline().strip()
        if not line.startswith(READY):
            raise SystemExit("the retriever did not start; its message is above")
        print(f"   {line}", flush=True)
        yield line.removeprefix(READY)
    finally:
        process.terminate()
        process.wait(timeout=30)


def main() -> int:
    # A terminated demo takes its service and its decoder with it.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="plain,dresd-auto", help="drafters to compare (default: %(default)s)")
    parser.add_argument("--nodes", default="8", help="node budgets, comma-separated (default: %(default)s)")
    parser.add_argument("--json", metavar="OUT", help="also write every measurement to this file")
    parser.add_argument("--html", metavar="OUT", help="also write a report to this file")
    parser.add_argument("--build-only", action="store_true", help="make model and datastore, and decode nothing")
    arguments = parser.parse_args()

    started = time.monotonic()
    model = prepare_model()
    datastore, answers = build_datastore(model)
    if arguments.build_only:
        return 0
    with served(datastore) as address:
        command = [str(BIN / "dresd-decoder"), "bench", "--model", str(model), "--retriever", address]
        command += ["--prompts", str(TEST), "--max-new-tokens", MAX_NEW_TOKENS]
        command += ["--methods", arguments.methods, "--nodes", arguments.nodes]
        command += ["--datastore", str(datastore), "--corpus", str(answers)]
        for option, value in (("--json", arguments.json), ("--html", arguments.html)):
            command += [option, value] if value else []
        run(f"Decoding {TEST.name} with and without it", command)
    print(f"\nThe whole demo took {time.monotonic() - started:.0f} s.")
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        print("\nstopped: what was answered and embedded is kept, and the next run goes on with it", file=sys.stderr)
        code = 130
    raise SystemExit(code)
