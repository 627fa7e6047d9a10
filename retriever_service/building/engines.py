"""What computes answers and keys for a build: engines, known by name only.

Knows what an engine is asked; no engine, and none of the libraries that models need.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from retriever_service.building.document import Document
from retriever_service.building.progress import Counter

if TYPE_CHECKING:
    from decoder_client.reducer import KeyReducer
    from retriever_service.building.embedded import EmbeddedBlock

ENGINES = {
    "transformers": "retriever_service.building.transformers_engine:TransformersEngine",
    "vllm": "retriever_service.building.vllm_engine:VllmEngine",
}
"""By name, "module:class" of a `TargetEngine` that is made with `model` and `threads`."""


class TargetEngine(Protocol):
    """Holds the model, lets it answer, and reads its states."""

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

    def embed(
        self,
        documents: Sequence[Document],
        reducer: KeyReducer | None,
        chosen: NDArray[np.bool_],
        counter: Counter | None = None,
    ) -> EmbeddedBlock:
        """States (without a reducer) or keys of every stored position of the documents, and likely next tokens of some.

        Args:
            documents: none longer than the model's window; neighbours of about equal length.
            reducer: None for states.
            chosen: bool [entries], the positions whose likely next tokens are wanted.
            counter: raised by the tokens embedded.

        Raises:
            BuildError: the model computes NaN or infinite states.
        """


def make_engine(name: str, model: str, threads: int) -> TargetEngine:
    """The engine of that name, of `ENGINES`, with the model loaded.

    Raises:
        BuildError: it cannot be had here.
    """
    module, _, kind = ENGINES[name].partition(":")
    engine: TargetEngine = getattr(import_module(module), kind)(model, threads)
    return engine
