"""Which tokens may see which when draft trees are verified in one pass: a node sees the text and its ancestors.

Only passes with a draft need masks of ours; tokens in plain order are masked by the model itself. This module knows
attention layouts, not models or drafts' origins.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Drafts flattened behind the newest tokens of B sequences, as the model takes them.

    Attributes:
        input_ids: int64 [B, T], the newest token, then the nodes, then padding behind smaller drafts.
        position_ids: int64 [B, T].
        masks: a mask [B, 1, T, longest + T], or one for each layer type.
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
        self,
        newest: Sequence[int],
        trees: Sequence[DraftTree],
        lengths: Sequence[int],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> TreeInput:
        """Lays out the newest tokens and their drafts behind the cached tokens.

        Args:
            newest: of each sequence the token just chosen, at the position of its length.
            trees: drafted to follow them; may be empty.
            lengths: cached tokens of each sequence; the pass is written behind the longest.
            device: where the tensors are wanted.
            dtype: the model's, for additive masks.
        """
        batch, rows, begin = len(trees), 1 + max(map(len, trees)), max(lengths)
        # One array, one transfer: ids, positions, lengths and the ancestor matrices.
        packed = np.zeros((batch, rows, rows + 3), np.int64)
        for own, token, tree, length in zip(packed, newest, trees, lengths, strict=True):
            nodes = 1 + len(tree)
            own[0, 0] = token
            own[1:nodes, 0] = tree.tokens
            own[:, 1] = length
            own[1:nodes, 1] += tree.depths()
            own[:, 2] = length
            own[:nodes, 3] = 1
            own[1:nodes, 4 : 3 + nodes] = tree.ancestor_mask()
        moved = torch.from_numpy(packed).to(device)
        positions = moved[:, :, 1]
        columns = torch.arange(begin, device=device)
        sees = torch.cat([columns < moved[:, :, 2:3], moved[:, :, 3:].to(torch.bool)], dim=2)
        full = self._finish(sees, dtype)
        masks: Tensor | dict[str, Tensor]
        if self.sliding_window is None:
            masks = dict.fromkeys(self.layer_types, full) if self.layer_types else full
        else:
            # Token j sees token k if it is among the last `sliding_window` up to j; nodes stand at their depth.
            stands = torch.cat([columns.expand(batch, begin), positions], dim=1)
            in_window = stands[:, None, :] > (positions - self.sliding_window)[:, :, None]
            sliding = self._finish(sees & in_window, dtype)
            masks = {t: sliding if t == _SLIDING else full for t in self.layer_types} if self.layer_types else sliding
        return TreeInput(moved[:, :, 0], positions, masks)

    def _finish(self, sees: Tensor, dtype: torch.dtype) -> Tensor:
        if self.additive:
            sees = torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, torch.finfo(dtype).min)
        return sees[:, None]
