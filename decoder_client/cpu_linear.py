"""Linear layers with weights packed once for oneDNN: a pass over a draft at about a plain step's cost on a CPU.

The stock kernel for a handful of rows costs about twice that for one row, which eats what drafts gain. Packed weights
give the same products within float32 rounding. The originals are dropped, so memory does not grow; such a model
decodes and embeds but cannot be trained or saved. Knows layers, not models or drafts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Rows the layout is chosen for; oneDNN takes any number.
_TYPICAL_ROWS = 16


class PackedLinear(nn.Module):
    """A float32 linear layer on the CPU. `weight` keeps shape and type only, for whoever asks about them."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = torch.empty_like(linear.weight, device="meta")
        self.bias = None if linear.bias is None else linear.bias.detach()
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TYPICAL_ROWS)

    def forward(self, states: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(states, self._packed, self.bias, "none", [], "")
        return product


def can_pack() -> bool:
    """Whether this build of torch has the kernels."""
    if not torch._C._has_mkldnn:
        return False
    try:
        PackedLinear(nn.Linear(2, 2))(torch.zeros(1, 2))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return True


@torch.inference_mode()
def pack_linear_layers(model: nn.Module) -> int:
    """Replaces every float32 `nn.Linear` of a model on the CPU, a tied head too; returns how many.

    Other layers (embeddings, quantised or adapted linear layers) stay as they are.
    """
    places = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child.weight.device.type == "cpu" and child.weight.dtype == torch.float32
    ]
    # One after the other, so that at most one layer is held twice.
    for parent, name in places:
        linear = parent.get_submodule(name)
        assert isinstance(linear, nn.Linear)  # noqa: S101 - for the type checker; `places` holds no others
        setattr(parent, name, PackedLinear(linear).train(mode=linear.training))
    return len(places)
