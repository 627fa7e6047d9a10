"""vLLM with retrieved drafts, turned on by one line:

    LLM(model, speculative_config={"method": "custom_class", "model": "decoder_client.engines.vllm.DresdProposer",
                                   "num_speculative_tokens": 12})

vLLM stays in charge: it schedules, verifies drafts and samples. Only `proposer`, `hook` and `build_worker` know vLLM's
own types; the rest works on `engine_step`, and is tested without vLLM. Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decoder_client.engines.vllm.proposer import DresdProposer

__all__ = ["DresdProposer"]


def __getattr__(name: str) -> object:
    if name != "DresdProposer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from decoder_client.engines.vllm.proposer import DresdProposer

    return DresdProposer
