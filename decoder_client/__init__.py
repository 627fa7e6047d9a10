"""dresd's decoder: a transformers model that decodes faster with retrieved drafts, with identical output.

    from decoder_client import SpeculativeDecoder

Names are imported when first used, so that parts without a model (the retriever's client) stay light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decoder_client.generation import Generation, SpeculativeDecoder
    from decoder_client.stats import GenerationStats

__all__ = ["Generation", "GenerationStats", "SpeculativeDecoder"]

_HOMES = {
    "Generation": "decoder_client.generation",
    "GenerationStats": "decoder_client.stats",
    "SpeculativeDecoder": "decoder_client.generation",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
