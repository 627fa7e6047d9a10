"""Attention with grouped heads for a handful of rows on a CPU, without copies of the cache.

With a mask, transformers repeats keys and values for every query head of a group, whole cache and every pass. The
heads of a group see the same keys, so here their rows stand below each other as rows of one head: the same sums, no
copies. Layers share a pass's mask, so it is laid out for that once a pass. Everything else is transformers' own. Knows
attention calls, not models or drafts.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CPU_ATTENTION = "dresd_cpu"
"""The name by which transformers knows it."""

_MOST_ROWS = 1024
"""Of a draft; longer passes are prompts, which transformers computes by blocks."""


class _GroupedMasks(threading.local):
    """The masks of the pass that this thread is in, laid out for grouped heads; they go when the pass's masks go."""

    def __init__(self) -> None:
        self._laid_out: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def of(self, mask: Tensor, columns: int, heads: int, dtype: torch.dtype) -> Tensor:
        """What is added to the scores [B, 1, heads * T, columns] of `heads` heads that share keys.

        Args:
            mask: [B, 1, T, columns or more], boolean or additive.
            columns: keys.
            heads: of a group.
            dtype: of the scores.
        """
        known = self._laid_out.get(id(mask))
        if known is not None and known[0]() is mask and known[1].shape[2:] == (heads * mask.shape[2], columns):
            return known[1]
        seen = mask[..., :columns]
        if mask.dtype == torch.bool:
            seen = torch.zeros(seen.shape, dtype=dtype, device=mask.device).masked_fill_(~seen, -torch.inf)
        repeated = seen.repeat(1, 1, heads, 1)
        laid_out, key = self._laid_out, id(mask)
        laid_out[key] = (weakref.ref(mask, lambda _gone: laid_out.pop(key, None)), repeated)
        return repeated


_grouped_masks = _GroupedMasks()


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    # Any: transformers hands on whatever a model's layers pass.
    **options: Any,  # noqa: ANN401
) -> tuple[Tensor, None]:
    """transformers' attention call: query [B, heads, T, d], key and value [B, groups, S, d] -> [B, T, heads, d]."""
    batch, heads, rows, width = query.shape
    groups = key.shape[1]
    masked = attention_mask is not None and attention_mask.shape[1] == 1 and rows <= _MOST_ROWS
    plain = attention_mask is None and rows == 1
    unusual = options.get("position_bias") is not None or options.get("softcap") is not None
    if groups == heads or not (masked or plain) or unusual:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    below = query.reshape(batch, groups, heads // groups * rows, width)
    mask = None
    if attention_mask is not None:
        mask = _grouped_masks.of(attention_mask, key.shape[2], heads // groups, query.dtype)
    attended = nn.functional.scaled_dot_product_attention(
        below, key, value, attn_mask=mask, scale=options.get("scaling")
    )
    return attended.reshape(batch, heads, rows, width).transpose(1, 2).contiguous(), None


def use_cpu_attention(model: PreTrainedModel) -> bool:
    """Makes a float32 model on the CPU attend by it, where it attends by transformers' sdpa; says whether it does."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if model.config._attn_implementation != "sdpa" or model.config.sub_configs or model.dtype != torch.float32:
        return False
    AttentionInterface.register(CPU_ATTENTION, grouped_attention)
    AttentionMaskInterface.register(CPU_ATTENTION, sdpa_mask)
    model.set_attn_implementation(CPU_ATTENTION)
    return bool(model.config._attn_implementation == CPU_ATTENTION)
