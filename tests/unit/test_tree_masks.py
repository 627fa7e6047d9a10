"""A draft node sees the text and its ancestors, within the sliding window if there is one, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.masks import AttentionLayout
from dresd.draft_tree import ROOT, DraftTree
from tests.support.drafts import tree_of, trees

CPU = torch.device("cpu")


def layout(**config: object) -> AttentionLayout:
    return AttentionLayout.of(SimpleNamespace(**{"_attn_implementation": "sdpa", **config}))


def sees(tree: DraftTree, length: int, window: int | None) -> list[list[bool]]:
    """By definition, one pair of tokens at a time."""
    stands = [*range(length + 1), *(length + depth for depth in tree.depths().tolist())]

    def ancestors(node: int) -> set[int]:
        return {node} | (ancestors(int(tree.parents[node])) if node != ROOT else set())

    def visible(row: int, column: int) -> bool:
        node, other = row - 1, column - length - 1
        related = column <= length or (node != ROOT and other in ancestors(node))
        return related and (window is None or stands[column] > stands[length + row] - window)

    return [[visible(row, column) for column in range(length + 1 + len(tree))] for row in range(1 + len(tree))]


@given(trees(3).filter(len), st.integers(0, 12), st.integers(1, 10))
def test_masks_follow_the_definition(tree: DraftTree, length: int, window: int) -> None:
    both = layout(layer_types=["full_attention", "sliding_attention"], sliding_window=window)
    flat = both.tree_input(2, tree, length, device=CPU, dtype=torch.float32)
    assert isinstance(flat.masks, dict)
    assert flat.masks["full_attention"][0, 0].tolist() == sees(tree, length, None)
    assert flat.masks["sliding_attention"][0, 0].tolist() == sees(tree, length, window)
    assert flat.input_ids.tolist() == [[2, *tree.tokens.tolist()]]
    assert flat.position_ids.tolist() == [[length, *(length + depth for depth in tree.depths().tolist())]]


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({}, None),
        ({"sliding_window": 4}, 4),
        ({"layer_types": ["full_attention"], "sliding_window": 4}, None),
        ({"layer_types": None, "sliding_window": None}, None),
    ],
)
def test_the_window_counts_where_layers_slide(config: dict[str, object], window: int | None) -> None:
    tree = tree_of([[0, 1], [2]])
    masks = layout(**config).tree_input(1, tree, 6, device=CPU, dtype=torch.float32).masks
    each = list(masks.values()) if isinstance(masks, dict) else [masks]
    assert [mask[0, 0].tolist() for mask in each] == [sees(tree, 6, window)]
    assert isinstance(masks, dict) == bool(config.get("layer_types"))


def test_eager_attention_gets_masks_to_add() -> None:
    tree = tree_of([[0, 1], [2]])
    config = SimpleNamespace(_attn_implementation="eager")
    mask = AttentionLayout.of(config).tree_input(1, tree, 3, device=CPU, dtype=torch.bfloat16).masks
    assert isinstance(mask, torch.Tensor)
    assert mask.dtype == torch.bfloat16
    lowest = torch.finfo(torch.bfloat16).min
    assert mask[0, 0].tolist() == [[0.0 if s else lowest for s in row] for row in sees(tree, 3, None)]
