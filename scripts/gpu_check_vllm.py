"""Checks the vLLM path on this machine's GPU: a datastore built by vLLM, answers that stay the same, and what it gains.

    python scripts/gpu_check_vllm.py --model FOLDER --vllm-python engine/bin/python

This Python builds (extras `build,server`); the other one has vLLM and dresd's `vllm,server`. With two GPUs, answers by
two are compared, too. bfloat16 may part answers where two tokens are about equally likely, with drafts or without: the
comparison is in float32. Prints what each step printed; exit code 1: a step failed, or an answer differed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAIN, TEST = ROOT / "examples" / "stdlib" / "train.jsonl", ROOT / "examples" / "stdlib" / "test.jsonl"


def steps(model: Path, vllm_python: str, folder: Path, gpus: int) -> dict[str, list[str]]:
    """The commands by what they check."""
    build = [sys.executable, "-m", "retriever_service.cli", "build", "--model", str(model), "--corpus", str(TRAIN)]
    build += ["--respond", "--out"]
    asked = ["--model", str(model), "--datastore", str(folder / "vllm"), "--prompts", str(TEST), "--compiled"]
    identity = [vllm_python, "-m", "benchmarks.vllm.identity", *asked, "--new-tokens", "64"]
    bench = [vllm_python, "-m", "benchmarks.vllm", *asked, "--dtype", "bfloat16"]
    bench += ["--methods", "plain,ngram,dresd,dresd-all", "--requests", "1,16,64", "--counts", "4,32,128"]
    found = {
        "a datastore built by vLLM": [*build, str(folder / "vllm"), "--engine", "vllm"],
        "the same built by transformers": [*build, str(folder / "transformers")],
        "answers with drafts": identity,
        "what drafts gain": [*bench, "--rounds", "5"],
    }
    if gpus > 1:
        found["answers by two GPUs"] = [*identity, "--tensor-parallel", "2", "--states", "up"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder")
    parser.add_argument("--vllm-python", required=True, help="the Python that has vLLM")
    options = parser.parse_args()
    import torch

    failed = []
    with tempfile.TemporaryDirectory(prefix="dresd-gpu-") as folder:
        environment = {**os.environ, "DRESD_VLLM_PYTHON": options.vllm_python}
        commands = steps(options.model.resolve(), options.vllm_python, Path(folder), torch.cuda.device_count())
        for name, command in commands.items():
            print(f"== {name}", flush=True)
            if subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode != 0:
                failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
