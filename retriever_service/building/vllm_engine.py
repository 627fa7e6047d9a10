"""The vLLM engine: a vLLM in a process of its own answers and embeds, because it wants versions of its own.

The process is Python's with vLLM, named by DRESD_VLLM_PYTHON (this one, if it is not), and runs `PROGRAM`. Lines of
JSON go both ways, tensors through files. Knows that program's messages and nothing of vLLM.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from decoder_client.reducer import KeyReducer
from decoder_client.target_model import TargetModel
from retriever_service.building.document import Document
from retriever_service.building.embed import last_two
from retriever_service.building.embedded import EmbeddedBlock
from retriever_service.building.errors import BuildError
from retriever_service.building.models import load_for_encoding
from retriever_service.building.progress import Counter

PROGRAM = "decoder_client.engines.vllm.build_worker"
PYTHON = "DRESD_VLLM_PYTHON"
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")


class VllmEngine:
    """A `TargetEngine`."""

    def __init__(self, model: str, threads: int, environment: Mapping[str, str] | None = None) -> None:
        """Args:
            model: folder or hub name.
            threads: of the computation on a CPU.
            environment: of the process; None is this one's.

        Raises:
            BuildError: there is no vLLM, it does not start, or it is not one of the tested versions.
        """
        self._target: TargetModel = load_for_encoding(model)
        self._vllm = _Process(threads, environment or os.environ)
        self._vllm.ask({"model": model, "max_length": self._target.max_length}, _nothing)

    def answer(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        counter: Counter | None = None,
    ) -> list[list[int]]:
        """All prompts at once, as many of them in a batch as vLLM has room for."""
        job = {
            "do": "answer",
            "prompts": prompts,
            "max_new_tokens": max_new_tokens,
            "max_length": self._target.max_length,
            "temperature": temperature,
            "seed": seed,
            "ends": sorted(self._target.eos_token_ids),
        }
        done = self._vllm.ask(job, counter.add if counter is not None else _nothing)
        answers: list[list[int]] = done["answers"]
        return answers

    def decode(self, tokens: Sequence[int]) -> str:
        """Empty if the model has no tokenizer."""
        return "" if self._target.tokenizer is None else self._target.decode(tokens)

    def embed(
        self,
        documents: Sequence[Document],
        reducer: KeyReducer | None,
        chosen: NDArray[np.bool_],
        counter: Counter | None = None,
    ) -> EmbeddedBlock:
        """All documents at once; states become keys where vLLM runs."""
        with tempfile.TemporaryDirectory(prefix="dresd-vllm-") as name:
            tensors = self._embedded(Path(name), documents, reducer, chosen, counter)
        if not np.isfinite(tensors["vectors"]).all():
            raise BuildError(f"Model {self._target.name!r} computes NaN or infinite states. Are its weights intact?")
        asked = np.flatnonzero(chosen)
        previous, current = last_two(documents)
        return EmbeddedBlock(
            tensors["vectors"], previous[asked], current[asked], tensors["top_tokens"], tensors["top_probabilities"]
        )

    def _embedded(
        self,
        folder: Path,
        documents: Sequence[Document],
        reducer: KeyReducer | None,
        chosen: NDArray[np.bool_],
        counter: Counter | None,
    ) -> dict[str, NDArray[Any]]:
        """What vLLM found, through files in a folder."""
        given, found = folder / "given.safetensors", folder / "found.safetensors"
        # The state of a last token is nobody's key: what follows it is not known.
        save_file(
            {
                "tokens": np.concatenate([document.tokens[:-1] for document in documents]),
                "kept": np.concatenate([document.stored[1:] for document in documents]).view(np.uint8),
                "lengths": np.array([len(document.tokens) - 1 for document in documents], np.int64),
                "chosen": chosen.view(np.uint8),
            },
            given,
        )
        job = {"do": "embed", "given": str(given), "found": str(found), "reducer": ""}
        if reducer is not None:
            (folder / "reducer").write_bytes(reducer.to_bytes())
            job["reducer"] = str(folder / "reducer")
        self._vllm.ask(job, counter.add if counter is not None else _nothing)
        tensors: dict[str, NDArray[Any]] = load_file(found)
        return tensors


class _Process:
    """`PROGRAM`, which is told what to do and says what it did."""

    def __init__(self, threads: int, environment: Mapping[str, str]) -> None:
        self._python = environment.get(PYTHON) or sys.executable
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        try:
            self._process = subprocess.Popen(
                [self._python, "-m", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**environment, "OMP_NUM_THREADS": str(threads)},
            )
        except OSError as error:
            raise BuildError(
                f"vLLM does not start: {self._python!r} is no Python ({error.strerror}). "
                f"Name one with vLLM by {PYTHON}."
            ) from error
        weakref.finalize(self, _end, self._process)  # it ends with this, however this ends

    def ask(self, message: Mapping[str, object], progressed: Callable[[int], object]) -> dict[str, Any]:
        """Sends a message and waits for what came of it.

        Raises:
            BuildError: it failed.
        """
        try:
            _pipe(self._process.stdin).write(json.dumps(message).encode() + b"\n")
            _pipe(self._process.stdin).flush()
        except OSError as error:
            raise self._died() from error
        for line in _pipe(self._process.stdout):
            said: dict[str, Any] = json.loads(line)
            if "failed" in said:
                raise BuildError(said["failed"])
            if "done" in said:
                return said
            progressed(said["progress"])
        raise self._died()

    def _died(self) -> BuildError:
        code = self._process.wait()  # then all is in the log
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.match(line)] or lines
        last = errors[-1] if errors else f"it said nothing and returned {code}."
        return BuildError(
            f"vLLM has ended: {last} Does {self._python!r} have dresd and vLLM? {PYTHON} names another Python."
        )


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise BuildError("vLLM was started without pipes.")
    return pipe


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _nothing(_number: int) -> None:
    """Nobody wants to know."""
