"""Engines in processes of their own, which are asked in turn, and the service that one of them drafts from."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

_PROPOSER = "benchmarks.vllm.timed.TimedProposer"
METHODS = ("plain", "ngram", "dresd", "dresd-all")
"""`dresd-all` drafts as many tokens as it may at every step, whatever they cost."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What an engine did of a job.

    Attributes:
        answers: token ids of each.
        seconds: for all of them, prompts read included.
        drafted: draft tokens verified.
        accepted: of these.
        step_seconds: what our own code took in each step of the engine; none where it has no part.
    """

    answers: tuple[tuple[int, ...], ...]
    seconds: float
    drafted: int
    accepted: int
    step_seconds: tuple[float, ...]

    def __add__(self, other: Answered) -> Answered:
        return Answered(
            self.answers + other.answers,
            self.seconds + other.seconds,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.step_seconds + other.step_seconds,
        )

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(map(len, self.answers))


class EngineProcess:
    """A vLLM."""

    def __init__(self, options: Mapping[str, object]) -> None:
        """`options`: of vLLM's `LLM`."""
        command = [sys.executable, "-m", "benchmarks.vllm.serving"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._ask(options)

    def answer(self, prompts: Sequence[Sequence[int]], *, requests: int, new_tokens: int) -> Answered:
        """Greedy answers of `new_tokens` tokens at most, to so many prompts at once."""
        said = self._ask({"prompts": prompts, "requests": requests, "new_tokens": new_tokens})
        return Answered(
            tuple(tuple(answer) for answer in said["answers"]),
            said["seconds"],
            said["drafted"],
            said["accepted"],
            tuple(said["steps"]),
        )

    def _ask(self, message: Mapping[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None  # noqa: S101 - both are pipes
        assert self._process.stdout is not None  # noqa: S101
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("result "):
                said: dict[str, Any] = json.loads(line.removeprefix("result "))
                return said
        raise SystemExit("an engine has ended; its message is above")

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()


def engine_of(
    options: argparse.Namespace, method: str, address: str, *, adaptive: bool, engines: int, tensor_parallel: int = 1
) -> EngineProcess:
    """One of so many engines of a program with the options of both, that drafts from a retriever if it drafts by us."""
    return EngineProcess(
        {
            "model": str(options.model),
            "dtype": options.dtype,
            "max_model_len": 1024,
            "max_num_seqs": max(options.requests),
            **(on_gpu(engines) if options.compiled else {"enforce_eager": True}),
            "tensor_parallel_size": tensor_parallel,
            "speculative_config": speculative_config(method, options.draft_tokens),
            "additional_config": {"dresd": {"retriever": address, "adaptive": adaptive}},
        }
    )


def on_gpu(engines: int) -> dict[str, object]:
    """Options of one of so many engines that share a GPU, with compiled kernels and CUDA graphs."""
    return {"enforce_eager": False, "gpu_memory_utilization": round(0.85 / engines, 2)}


def speculative_config(method: str, draft_tokens: int) -> dict[str, object] | None:
    """What vLLM is told, for one of `METHODS`."""
    if method == "plain":
        return None
    if method == "ngram":
        lookup = {"prompt_lookup_max": 5, "prompt_lookup_min": 2}
        return {"method": "ngram", "num_speculative_tokens": draft_tokens, **lookup}
    return {"method": "custom_class", "model": _PROPOSER, "num_speculative_tokens": draft_tokens}


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and where it listens."""

    address: str
    process: subprocess.Popen[str]


@contextmanager
def served(datastore: Path) -> Iterator[Served]:
    """A server of its own."""
    command = [sys.executable, "-m", "retriever_service.cli", "serve", str(datastore), "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None  # noqa: S101 - it is a pipe
            ready = server.stdout.readline()
            if " ready on " not in ready:
                raise SystemExit(f"the datastore {datastore} is not served; the message is above")
            yield Served(ready.rsplit(" ", 1)[1].strip(), server)
        finally:
            server.terminate()
