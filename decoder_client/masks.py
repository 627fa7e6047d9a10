"""Which tokens may see which when a draft tree is verified in one pass: a node sees the text and its ancestors.

Only passes with a draft need masks of ours; tokens in plain order are masked by the model itself. This module knows
attention layouts, not models or drafts' origins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dresd.draft_tree import DraftTree

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_SLIDING = "sliding_attention"


@dataclass(frozen=True, slots=True)
class TreeInput:
    """A draft flattened behind the newest token, as the model takes it.

    Attributes:
        input_ids: int64 [1, 1 + n], the newest token, then the nodes.
        position_ids: int64 [1, 1 + n].
        masks: a mask [1, 1, 1 + n, length + 1 + n], or one for each layer type.
    """

    input_ids: Tensor
    position_ids: Tensor
    masks: Tensor | dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """How a model's layers attend, as far as masks show it.

    Attributes:
        layer_types: "full_attention" and/or "sliding_attention" if the model takes one mask for each type; empty if
            it takes a single mask.
        sliding_window: tokens a sliding layer sees, itself included; None without sliding layers.
        additive: masks are added to scores (eager attention) instead of being boolean (sdpa).
    """

    layer_types: tuple[str, ...]
    sliding_window: int | None
    additive: bool

    @classmethod
    def of(cls, config: PretrainedConfig) -> AttentionLayout:
        """The layout of a text configuration, by the rule transformers itself follows in `generate`."""
        layer_types = tuple(sorted(set(getattr(config, "layer_types", None) or ())))
        window = getattr(config, "sliding_window", None)
        if layer_types and _SLIDING not in layer_types:
            window = None
        return cls(layer_types, None if window is None else int(window), config._attn_implementation == "eager")

    def tree_input(
        self, newest: int, tree: DraftTree, length: int, *, device: torch.device, dtype: torch.dtype
    ) -> TreeInput:
        """Lays out the newest token and a non-empty draft behind `length` cached tokens.

        Args:
            newest: the token just chosen, at position `length`.
            tree: drafted to follow it.
            length: tokens in the cache.
            device: where the tensors are wanted.
            dtype: the model's, for additive masks.
        """
        rows = 1 + len(tree)
        # One array, one transfer: ids, depths and the ancestor matrix.
        packed = np.zeros((rows, rows + 2), np.int64)
        packed[0, 0] = newest
        packed[1:, 0] = tree.tokens
        packed[1:, 1] = tree.depths()
        packed[:, 2] = 1
        packed[1:, 3:] = tree.ancestor_mask()
        moved = torch.from_numpy(packed).to(device)
        depths = moved[:, 1]
        sees = torch.ones(rows, length + rows, dtype=torch.bool, device=device)
        sees[:, length:] = moved[:, 2:].to(torch.bool)
        full = self._finish(sees, dtype)
        masks: Tensor | dict[str, Tensor]
        if self.sliding_window is None:
            masks = dict.fromkeys(self.layer_types, full) if self.layer_types else full
        else:
            # Token j sees token k if it is among the last `sliding_window` up to j; nodes stand at their depth.
            stands = torch.arange(length + rows, device=device)
            stands[length:] = length + depths
            in_window = stands[None, :] > (length + depths - self.sliding_window)[:, None]
            sliding = self._finish(sees & in_window, dtype)
            masks = {t: sliding if t == _SLIDING else full for t in self.layer_types} if self.layer_types else sliding
        return TreeInput(moved[:, 0][None], (length + depths)[None], masks)

    def _finish(self, sees: Tensor, dtype: torch.dtype) -> Tensor:
        if self.additive:
            sees = torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, torch.finfo(dtype).min)
        return sees[None, None]
