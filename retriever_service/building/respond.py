"""The target answers the prompts itself: a datastore of its own answers fits what it will say next time best.

A block of prompts is answered by an engine and committed as a shard of documents, each with its line of the answers'
file as its text. Which engine computes the answers is known by name only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from retriever_service.building.document import Document
from retriever_service.building.documents import Documents, ShardWriter, content_hash
from retriever_service.building.engines import make_engine
from retriever_service.building.planning import Planned
from retriever_service.building.progress import Counter

_PROMPTS_IN_BLOCK = {"transformers": 64, "vllm": 512}
"""Answered together: a batch of the one; the other has batches of its own, which run low only at a block's end."""


def prompts_in_block(engine: str, answers: int) -> int:
    """How many prompts of so many answers each an engine answers together."""
    return max(_PROMPTS_IN_BLOCK[engine] // answers, 1)


def answers_path(directory: Path, block: int) -> Path:
    """Where the answered documents of a block lie."""
    return directory / f"answers-{block:06d}.block"


class RespondWorker:
    """A `BlockWorker` that holds an engine."""

    def __init__(
        self,
        *,
        engine: str,
        model: str,
        planned: Planned,
        out: Path,
        counters: Path,
        answers: int,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        prompt_keys: bool,
        threads: int,
    ) -> None:
        """Args:
        engine: one of `ENGINES`.
        model: folder or hub name.
        planned: the blocks of prompts.
        out: folder of the answered documents.
        counters: folder of the counters of tokens answered.
        answers: of each prompt.
        max_new_tokens: of an answer.
        temperature: 0 is greedy.
        seed: of the sampling.
        prompt_keys: positions of the prompts are stored, too.
        threads: of the computation on a CPU.
        """
        self._engine = make_engine(engine, model, threads)
        self._plan, self._documents = planned.load()
        self._out = out
        self._counters = counters
        self._answers = answers
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature
        self._seed = seed
        self._prompt_keys = prompt_keys

    def __call__(self, block: int) -> int:
        """Answers a block's prompts and commits the documents; returns the tokens its answers may have had."""
        numbers = np.repeat(self._plan.documents(block), self._answers).tolist()
        prompts = [self._documents[number].tokens.tolist() for number in numbers]
        with Counter(self._counters / f"block-{block:06d}") as counter:
            answers = self._engine.answer(
                prompts,
                max_new_tokens=self._max_new_tokens,
                temperature=self._temperature,
                seed=self._seed * 1_000_003 + block,
                counter=counter,
            )
        writer = ShardWriter()
        for number, prompt, answer in zip(numbers, prompts, answers, strict=True):
            document = Document.of(prompt, answer, prompt_keys=self._prompt_keys)
            line = {
                "prompt": self._documents.text(number),
                "response": self._engine.decode(answer),
                "prompt_ids": prompt,
                "response_ids": answer,
            }
            writer.add(document, identity=content_hash(document), text=json.dumps(line, ensure_ascii=False))
        writer.commit(answers_path(self._out, block), {})
        return len(prompts) * self._max_new_tokens


def answer_lines(planned: Planned, directory: Path, answers: int) -> Iterator[str]:
    """The lines of the answers' file in the order of the prompts; a few shards are in memory at a time."""
    plan, _ = planned.load()
    paths = [answers_path(directory, block) for block in range(plan.num_blocks)]
    answered = Documents(paths, plan.offsets * answers)
    for place in np.argsort(plan.order, kind="stable").tolist():
        for answer in range(answers):
            yield answered.text(place * answers + answer)
