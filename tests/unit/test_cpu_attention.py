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


@given(st.lists(st.tuples(st.integers(2, 3), st.integers(0, 4), st.booleans()), min_size=2, max_size=6))
def test_layers_that_share_masks_attend_as_each_would_alone(calls: list[tuple[int, int, bool]]) -> None:
    rows, longest = 3, 9
    masks = {sliding: torch.rand(2, 1, rows, longest) < (0.4 if sliding else 0.8) for sliding in (False, True)}
    for mask in masks.values():
        mask[..., 0] = True
    for repeats, fewer, sliding in calls:
        query = torch.randn(2, 2 * repeats, rows, 8)
        key, value = (torch.randn(2, 2, longest - fewer, 8) for _ in range(2))
        shared, alone = masks[sliding], masks[sliding][..., : longest - fewer].clone()
        expected, _ = sdpa_attention_forward(Layer(repeats), query, key, value, alone, scaling=0.3)
        attended, _ = grouped_attention(Layer(repeats), query, key, value, shared, scaling=0.3)
        torch.testing.assert_close(attended, expected, atol=1e-5, rtol=1e-4)


def test_what_is_kept_of_a_mask_goes_with_it() -> None:
    attended = []
    for seed in range(50):  # freed masks' places in memory are used again
        torch.manual_seed(seed)
        mask = torch.rand(1, 1, 2, 4) < 0.5
        mask[..., 0] = True
        query, key, value = torch.randn(1, 4, 2, 8), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
        expected, _ = sdpa_attention_forward(Layer(2), query, key, value, mask.clone(), scaling=0.3)
        got, _ = grouped_attention(Layer(2), query, key, value, mask, scaling=0.3)
        attended.append(torch.allclose(got, expected, atol=1e-5))
    assert all(attended)
