"""Which architectures can verify a draft tree, as far as their class and configuration tell.

What these do not tell is found out by `tree_check`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from decoder_client.cpu_attention import CPU_ATTENTION

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_LAYERS = {"full_attention", "sliding_attention"}
_KERNELS = {"sdpa", "eager", CPU_ATTENTION}
_CACHE_ARGUMENTS = ("cache", "past_key_values")


def refusal(model: PreTrainedModel, config: PretrainedConfig) -> str | None:
    """Why a model with the text configuration `config` cannot be a target model, and a hint; None if it can."""
    architecture = type(model).__name__
    reason = _structural(model, config)
    if reason is not None:
        return (
            f"{architecture} cannot be a target model: {reason}. Use a decoder-only model with full or "
            "sliding-window attention, such as Llama, Qwen3, Gemma 3 or GPT-2."
        )
    kernel = str(config._attn_implementation)
    if kernel not in _KERNELS:
        return (
            f"{architecture} was loaded with attention {kernel!r}, which takes no tree mask. "
            'Load it with attn_implementation="sdpa" (or "eager").'
        )
    return None


def cache_argument(model: PreTrainedModel) -> str | None:
    """The name under which the model's forward pass takes a cache: it depends on the version of transformers."""
    accepted = inspect.signature(model.forward).parameters
    return next((name for name in _CACHE_ARGUMENTS if name in accepted), None)


def _structural(model: PreTrainedModel, config: PretrainedConfig) -> str | None:
    layers = set(getattr(config, "layer_types", None) or ())
    head = model.get_output_embeddings()
    if getattr(model.config, "is_encoder_decoder", False):
        return "it is an encoder-decoder model"
    if getattr(model, "_is_stateful", False) or layers - _LAYERS:
        return f"it has layers that are not attention over a cache ({', '.join(sorted(layers)) or 'recurrent'})"
    if getattr(config, "attention_chunk_size", None) is not None:
        return "it attends in chunks"
    if "local" in (getattr(config, "attention_layers", None) or ()):
        return "its local attention counts rows instead of positions"  # GPT-Neo
    if head is None or getattr(head, "weight", None) is None or head.weight.ndim != 2:
        return "it has no language model head"
    if cache_argument(model) is None or "position_ids" not in inspect.signature(model.forward).parameters:
        return "its forward pass takes no position_ids or no cache"
    return None
