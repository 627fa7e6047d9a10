"""Kills processes of a build at random points, again and again, and compares what comes out with an undisturbed build.

    python scripts/kill_builds.py --kills 20

Each kill takes an actor while it holds a block, another worker of Ray, Ray itself, or the driver. A build that ends by
it is started again with the same command. Works on a small random model; prints a line for each kill, and one for each
datastore that came out, so that a run that is broken off has said something, too.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.building.memory import processes_below
from tests.support.building import ended_within, start_retriever, write_corpus
from tests.support.interrupting import contents

_KINDS = {
    "an actor": "ray::_BlockActor",
    "a task's worker": "ray::attempt",
    "an idle worker": "ray::IDLE",
    "Ray's node": "raylet/raylet ",
    "Ray's store": "gcs_server",
    "the driver": "",
}


def main() -> int:
    """Runs the builds; 0 if the datastore is the same."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--documents", type=int, default=12_000, help="of the corpus; default: 12000")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed, and when; default: 0")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="kills-") as folder:
        return _run(Path(folder), options)


def _run(folder: Path, options: argparse.Namespace) -> int:
    from tests.support.models import save_tiny_model  # which takes seconds to load

    model = save_tiny_model("llama", folder / "model", hidden_size=64)
    corpus = write_corpus(folder / "corpus.jsonl", times=max(options.documents // 4, 1))
    build = ["build", "--model", model, "--corpus", corpus, "--partitions", "4", "--dims", "32", "--fit-tokens", "8000"]
    begun = time.monotonic()
    undisturbed = start_retriever(*build, "--out", folder / "undisturbed")
    if undisturbed.wait():
        print(undisturbed.communicate()[1], file=sys.stderr)
        return 1
    whole_s = time.monotonic() - begun
    print(f"undisturbed: {whole_s:.0f} s", flush=True)
    chance = random.Random(options.seed)  # noqa: S311 - repeatable
    expected = contents(folder / "undisturbed")
    kills = rounds = differing = 0
    while kills < options.kills:
        out = folder / "store"
        kills += _build_and_kill(build, out, chance, options.kills - kills, whole_s)
        rounds += 1
        same = contents(out) == expected
        differing += not same
        print(f"  {kills} kills so far; the datastore is {'the same' if same else 'ANOTHER'}", flush=True)
        shutil.rmtree(out)
    outcome = "byte for byte the undisturbed one" if not differing else f"ANOTHER in {differing} of them"
    print(f"{kills} kills in {rounds} builds: the datastore is {outcome}")
    return 1 if differing else 0


def _build_and_kill(build: list[str | Path], out: Path, chance: random.Random, most: int, whole_s: float) -> int:
    """Runs the command until the datastore is there; returns how often something was killed meanwhile."""
    kills = 0
    while not out.exists():
        process = start_retriever(*build, "--out", out)
        while kills < most and not ended_within(process, chance.uniform(0.2, max(whole_s / 3, 3.0))):
            kills += _kill(process, chance, out.parent)
        _, errors = process.communicate()
        lines = [line for line in errors.splitlines() if line.strip()]
        ended = [line for line in lines if line.startswith("error: ")] or lines[-1:] if process.returncode else []
        print(f"  the build ended with {process.returncode}" + "".join(f": {line[:200]}" for line in ended), flush=True)
    return kills


def _kill(process: subprocess.Popen[str], chance: random.Random, folder: Path) -> int:
    """Kills one process; returns 1, or 0 if there was none of that kind."""
    kind = chance.choice(list(_KINDS))
    found = [number for number, title in processes_below(process.pid) if _KINDS[kind] in title]
    victims = [process.pid] if kind == "the driver" else found
    if not victims:
        return 0
    blocks = len(list(folder.glob(".store.building/*/*/*.block")))
    os.kill(chance.choice(victims), signal.SIGKILL)
    print(f"  killed {kind} with {blocks} blocks committed", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
