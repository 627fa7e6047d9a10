"""vLLM answers a corpus as transformers does, so a datastore of its answers is that of the model's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.evaluation import MAX_NEW_TOKENS, TinyWorld


def test_the_answers_are_those_of_transformers(world: TinyWorld, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    command = [sys.executable, "-m", "decoder_client.engines.vllm.answer", "--model", str(world.model)]
    command += ["--prompts", str(world.traces), "--out", str(out), "--max-new-tokens", str(MAX_NEW_TOKENS)]
    subprocess.run([*command, "--dtype", "float32", "--max-model-len", "128"], check=True, timeout=280)
    expected = [json.loads(line) for line in world.traces.read_text().splitlines()]
    assert [json.loads(line) for line in out.read_text().splitlines()] == expected
