"""Packed linear layers compute what the originals compute, within float32 rounding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from decoder_client.cpu_linear import PackedLinear, can_pack, pack_linear_layers

pytestmark = pytest.mark.skipif(not can_pack(), reason="this build of torch has no oneDNN")


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40), st.booleans(), st.integers(0, 2**31))
def test_products_are_those_of_the_original(inputs: int, outputs: int, rows: int, bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    linear = nn.Linear(inputs, outputs, bias=bias)
    states = torch.randn(1, rows, inputs)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear)(states), linear(states))
        # As the head sees them: a slice of the last rows.
        torch.testing.assert_close(PackedLinear(linear)(states[:, -1:]), linear(states[:, -1:]))


def test_plain_float32_layers_are_packed_and_others_left() -> None:
    class Adapted(nn.Linear):
        pass

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4).bfloat16()), Adapted(4, 4), nn.Linear(4, 2))
    assert pack_linear_layers(model) == 2
    kinds = [type(module).__name__ for module in model.modules()]
    assert kinds == ["Sequential", "PackedLinear", "Sequential", "Linear", "Adapted", "PackedLinear"]


def test_a_packed_layer_tells_its_shape_and_keeps_no_second_copy() -> None:
    packed = PackedLinear(nn.Linear(6, 3))
    assert packed.weight.shape == (3, 6)
    assert packed.weight.dtype == torch.float32
    assert packed.weight.is_meta
    assert list(packed.parameters()) == []
