"""The methods a benchmark can compare: names for sets of drafters that share one decode loop.

Knows which drafters a name stands for; not how they are measured.
"""

from __future__ import annotations

from collections.abc import Callable

from decoder_client.drafting import ContextDrafter, DenseDrafter, Drafter
from decoder_client.drafting.dense import Retriever
from decoder_client.evaluation.bench import PLAIN
from decoder_client.generation import default_drafters

METHODS: dict[str, str] = {
    PLAIN: "no drafts",
    "prompt-lookup": "continuations of earlier matches in prompt and answer",
    "dense": "the retriever's dense neighbours alone",
    "dresd": "dense neighbours and prompt lookup in one tree, as the decoder drafts by default",
}
"""Name -> what it drafts from."""

_WITHOUT_RETRIEVER: dict[str, Callable[[], list[Drafter]]] = {
    PLAIN: list,
    "prompt-lookup": lambda: [ContextDrafter()],
}
_WITH_RETRIEVER: dict[str, Callable[[Retriever], list[Drafter]]] = {
    "dense": lambda retriever: [DenseDrafter(retriever)],
    "dresd": default_drafters,
}


def needs_retriever(method: str) -> bool:
    """Whether the method asks the service."""
    return method in _WITH_RETRIEVER


def make_drafters(method: str, retriever: Retriever | None) -> list[Drafter]:
    """Fresh drafters of one method of `METHODS`; KeyError for another name, ValueError without a needed retriever."""
    if not needs_retriever(method):
        return _WITHOUT_RETRIEVER[method]()
    if retriever is None:
        raise ValueError(f"{method} needs a retriever")
    return _WITH_RETRIEVER[method](retriever)
