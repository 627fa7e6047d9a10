"""A draft node sees the text and its ancestors, within the sliding window if there is one, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.masks import AttentionLayout, TreeInput
from dresd.draft_tree import ROOT, DraftTree
from tests.support.drafts import tree_of, trees

CPU = torch.device("cpu")
TOKENS = 3


def layout(**config: object) -> AttentionLayout:
    return AttentionLayout.of(SimpleNamespace(**{"_attn_implementation": "sdpa", **config}))


def laid_out(
    layout: AttentionLayout, drafts: list[DraftTree], lengths: list[int], dtype: torch.dtype = torch.float32
) -> TreeInput:
    newest = [sequence % TOKENS for sequence in range(len(drafts))]
    return layout.tree_input(newest, drafts, lengths, device=CPU, dtype=dtype)


def sees(tree: DraftTree, length: int, begin: int, rows: int, window: int | None) -> list[list[bool]]:
    """By definition, one pair of a real row and a column at a time.

    The text's tokens stand in columns 0..length-1, the pass's from `begin` on; what is between and behind is nobody's.
    """

    def ancestors(node: int) -> set[int]:
        return {node} | (ancestors(int(tree.parents[node])) if node != ROOT else set())

    depths = [0, *tree.depths().tolist()]

    def visible(row: int, column: int) -> bool:
        if column < length:
            stands = column
        elif begin <= column <= begin + len(tree) and column - begin - 1 in ancestors(row - 1):
            stands = length + depths[column - begin]
        else:
            return False
        return window is None or stands > length + depths[row] - window

    return [[visible(row, column) for column in range(begin + rows)] for row in range(1 + len(tree))]


batches = st.lists(st.tuples(trees(TOKENS), st.integers(1, 12)), min_size=1, max_size=4)


@given(batches, st.integers(2, 10))
def test_masks_follow_the_definition(batch: list[tuple[DraftTree, int]], window: int) -> None:
    drafts, lengths = [tree for tree, _ in batch], [length for _, length in batch]
    both = layout(layer_types=["full_attention", "sliding_attention"], sliding_window=window)
    flat = laid_out(both, drafts, lengths)
    begin, rows = max(lengths), 1 + max(map(len, drafts))
    assert isinstance(flat.masks, dict)
    assert flat.input_ids.shape == flat.position_ids.shape == (len(batch), rows)
    for kind, width in (("full_attention", None), ("sliding_attention", window)):
        mask = flat.masks[kind]
        assert mask.shape == (len(batch), 1, rows, begin + rows)
        for own, tree, length in zip(mask, drafts, lengths, strict=True):
            assert own[0, : 1 + len(tree)].tolist() == sees(tree, length, begin, rows, width)
    for sequence, (tree, length) in enumerate(batch):
        nodes = 1 + len(tree)
        assert flat.input_ids[sequence, :nodes].tolist() == [sequence % TOKENS, *tree.tokens.tolist()]
        positions = [length, *(length + depth for depth in tree.depths().tolist())]
        assert flat.position_ids[sequence, :nodes].tolist() == positions


@given(batches, st.integers(2, 10))
def test_rows_of_padding_see_their_own_text_only_and_stand_within_it(
    batch: list[tuple[DraftTree, int]], window: int
) -> None:
    """Something must be seen, or their states are no numbers; and they cost no position behind the text's own."""
    drafts, lengths = [tree for tree, _ in batch], [length for _, length in batch]
    both = layout(layer_types=["full_attention", "sliding_attention"], sliding_window=window)
    flat = laid_out(both, drafts, lengths)
    assert isinstance(flat.masks, dict)
    for sequence, (tree, length) in enumerate(batch):
        padding = slice(1 + len(tree), None)
        assert (flat.position_ids[sequence, padding] == length).all()
        for mask in flat.masks.values():
            own = mask[sequence, 0, padding]
            assert not own[:, length:].any()
            assert own[:, :length].any(dim=1).all()


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
    masks = laid_out(layout(**config), [tree], [6]).masks
    each = list(masks.values()) if isinstance(masks, dict) else [masks]
    assert [mask[0, 0].tolist() for mask in each] == [sees(tree, 6, 6, 4, window)]
    assert isinstance(masks, dict) == bool(config.get("layer_types"))


def test_eager_attention_gets_masks_to_add() -> None:
    drafts, lengths = [tree_of([[0, 1], [2]]), tree_of([[1]])], [3, 5]
    config = SimpleNamespace(_attn_implementation="eager")
    mask = laid_out(AttentionLayout.of(config), drafts, lengths, torch.bfloat16).masks
    assert isinstance(mask, torch.Tensor)
    assert mask.dtype == torch.bfloat16
    lowest = torch.finfo(torch.bfloat16).min
    for own, tree, length in zip(mask, drafts, lengths, strict=True):
        expected = [[0.0 if s else lowest for s in row] for row in sees(tree, length, 5, 4, None)]
        assert own[0, : 1 + len(tree)].tolist() == expected
