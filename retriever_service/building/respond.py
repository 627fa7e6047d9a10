"""The target answers the prompts itself: a datastore of its own answers fits what it will say next time best.

A block of prompts is answered by an engine and committed as a shard of documents, each with its line of the answers'
file as its text. Which engine computes the answers is known by name only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol

import numpy as np

from retriever_service.building.document import Document
from retriever_service.building.documents import Documents, ShardWriter, content_hash
from retriever_service.building.planning import Planned
from retriever_service.building.progress import Counter

ENGINES = {"transformers": "retriever_service.building.transformers_engine:TransformersEngine"}
"""By name, "module:class" of an `AnswerEngine` that is made with `model` and `threads`."""

_PROMPTS_IN_BLOCK = 64


class AnswerEngine(Protocol):
    """Holds the model and lets it answer."""

    def answer(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        counter: Counter | None = None,
    ) -> list[list[int]]:
        """Answers of token ids, with the token that ended them if one did.

        Args:
            prompts: token ids, each shorter than the model's window; one may come several times.
            max_new_tokens: length of an answer, at most; an answer also ends where the model's window does.
            temperature: 0 is greedy.
            seed: of the sampling; the same prompts with the same seed get the same answers.
            counter: raised by `max_new_tokens` for each answer, as it grows.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens without special tokens; empty if the model has no tokenizer."""


def make_engine(name: str, model: str, threads: int) -> AnswerEngine:
    """The engine of that name, of `ENGINES`, with the model loaded."""
    module, _, kind = ENGINES[name].partition(":")
    engine: AnswerEngine = getattr(import_module(module), kind)(model, threads)
    return engine


def prompts_in_block(answers: int) -> int:
    """How many prompts of so many answers each are answered together."""
    return max(_PROMPTS_IN_BLOCK // answers, 1)


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
