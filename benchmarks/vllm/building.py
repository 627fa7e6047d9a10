"""The program `python -m benchmarks.vllm.building`: how fast each engine of a build answers and embeds, in turn, and
whether what they give is the same. Prints a table; runs in vLLM's environment.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.vllm.prompts import read_prompts
from decoder_client.reducer import ReducerFit
from retriever_service.building.document import Document
from retriever_service.building.engines import ENGINES, make_engine

_DIMS = 64


@dataclass(slots=True)
class Speed:
    """One engine's.

    Attributes:
        answers_s, embed_s: of each round.
        identical: answers that are the first engine's.
        cosine: of keys with the first engine's, the least.
    """

    answers_s: list[float] = field(default_factory=list)
    embed_s: list[float] = field(default_factory=list)
    identical: int = 0
    cosine: float = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Measures."""
    options = _parser().parse_args(arguments)
    engines = {name: make_engine(name, str(options.model), options.threads) for name in ENGINES}
    speeds = {name: Speed() for name in engines}
    prompts = read_prompts(options.prompts, options.model, options.rounds * options.count)
    tokens = entries = 0
    for turn in range(options.rounds):
        asked = prompts[turn * options.count : (turn + 1) * options.count]
        first: list[list[int]] = []
        for name, engine in engines.items():
            began = time.perf_counter()
            answers = engine.answer(asked, max_new_tokens=options.new_tokens, temperature=0.0, seed=0)
            speeds[name].answers_s.append(time.perf_counter() - began)
            first = first or answers
            speeds[name].identical += sum(one == other for one, other in zip(first, answers, strict=True))
        tokens += sum(map(len, first))
        documents = _documents(asked, first)
        reducer, keys = None, np.zeros((0, _DIMS), np.float32)
        chosen = _none(documents)
        entries += len(chosen)
        for name, engine in engines.items():
            if reducer is None:
                states = engine.embed(documents, None, chosen).vectors
                fit = ReducerFit(states.shape[1])
                fit.update(states)
                reducer = fit.finish(_DIMS)
            began = time.perf_counter()
            found = engine.embed(documents, reducer, chosen).vectors.astype(np.float32)
            speeds[name].embed_s.append(time.perf_counter() - began)
            keys = keys if len(keys) else found
            speeds[name].cosine = min(speeds[name].cosine, float((keys * found).sum(axis=1).min()))
    print("| engine | answers, tokens/s | keys, entries/s | identical answers | least cosine |")
    print("| --- | --- | --- | --- | --- |")
    for name, speed in speeds.items():
        print(
            f"| {name} | {tokens / sum(speed.answers_s):,.0f} | {entries / sum(speed.embed_s):,.0f} "
            f"| {speed.identical} of {len(prompts)} | {speed.cosine:.5f} |"
        )
    return 0


def _documents(prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> list[Document]:
    """As a block has them: neighbours in length."""
    pairs = sorted(zip(prompts, answers, strict=True), key=lambda pair: len(pair[0]) + len(pair[1]))
    return [Document.of(prompt, answer, prompt_keys=False) for prompt, answer in pairs]


def _none(documents: Sequence[Document]) -> NDArray[np.bool_]:
    """No position's likely next tokens are wanted."""
    return np.zeros(sum(int(document.stored.sum()) for document in documents), np.bool_)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm.building", description="Engines of a build.")
    parser.add_argument("--model", type=Path, required=True, help="a folder")
    parser.add_argument("--prompts", type=Path, required=True, help="a file")
    parser.add_argument("--rounds", type=int, default=3, help="of both engines; default: 3")
    parser.add_argument("--count", type=int, default=64, help="prompts a round; default: 64")
    parser.add_argument("--new-tokens", type=int, default=64, help="of an answer, at most; default: 64")
    parser.add_argument("--threads", type=int, default=1, help="of each engine; default: 1")
    return parser


if __name__ == "__main__":
    sys.exit(main())
