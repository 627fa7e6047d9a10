"""Attention without copies of the cache is transformers' own, within float32 rounding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from decoder_client.cpu_attention import CPU_ATTENTION, grouped_attention, use_cpu_attention
from decoder_client.target_model import TargetModel
from decoder_client.tree_check import check_tree_attention
from tests.support.models import tiny_model


class Layer(nn.Module):
    """What transformers asks of a layer."""

    is_causal = True

    def __init__(self, num_key_value_groups: int) -> None:
        super().__init__()
        self.num_key_value_groups = num_key_value_groups


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(0, 30),
    st.sampled_from(["bool", "additive", "none"]),
    st.integers(0, 2**31),
)
def test_it_attends_as_transformers_does(
    batch: int, groups: int, repeats: int, rows: int, cached: int, kind: str, seed: int
) -> None:
    torch.manual_seed(seed)
    # As a model's layers hand them over: heads are a transposed view, the cache a view of more room.
    query = torch.randn(batch, rows, groups * repeats, 8).transpose(1, 2)
    key, value = (torch.randn(batch, groups, cached + rows + 5, 8)[:, :, : cached + rows] for _ in range(2))
    sees = torch.rand(batch, 1, rows, cached + rows) < 0.5
    sees[..., cached:] |= torch.eye(rows, dtype=torch.bool)
    added = torch.zeros(sees.shape).masked_fill_(~sees, torch.finfo(torch.float32).min)
    mask = {"bool": sees, "additive": added, "none": None}[kind]
    layer = Layer(repeats)
    expected, _ = sdpa_attention_forward(layer, query, key, value, mask, scaling=0.3)
    attended, _ = grouped_attention(layer, query, key, value, mask, scaling=0.3)
    assert attended.shape == expected.shape == (batch, rows, groups * repeats, 8)
    torch.testing.assert_close(attended, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_model_that_uses_it_attends_along_trees(architecture: str) -> None:
    model = tiny_model(architecture, vocab_size=50)
    assert use_cpu_attention(model)
    assert model.config._attn_implementation == CPU_ATTENTION
    check_tree_attention(TargetModel(model))


def test_other_ways_to_attend_are_left_alone() -> None:
    model = tiny_model("llama", vocab_size=50)
    model.set_attn_implementation("eager")
    assert not use_cpu_attention(model)
    assert model.config._attn_implementation == "eager"
