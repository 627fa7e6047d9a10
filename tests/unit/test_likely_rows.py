"""The likeliest tokens of the rows of a pass, against torch's own top k."""

import numpy as np
import pytest
import torch

from decoder_client.likely import WIDTH, LikelyRows
from dresd.draft_tree import DraftTree

TREE = DraftTree(np.array([5, 6, 7, 8], np.int32), np.array([-1, 0, -1, 2], np.int32), np.zeros((4, 1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [3, 1000, 5000])
@pytest.mark.parametrize(
    ("rejected", "rows", "contexts"),
    [
        (False, [0, 3, 4], [[1, 2], [2, 7], [7, 8]]),
        (True, [0, 1, 2, 3, 4], [[1, 2], [2, 5], [5, 6], [2, 7], [7, 8]]),
    ],
)
def test_rows_asked_for_are_told(
    dtype: torch.dtype, vocab_size: int, rejected: bool, rows: list[int], contexts: list[list[int]]
) -> None:
    logits = (8.0 * torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(1))).to(dtype)
    likely = LikelyRows(logits, TREE, [2, 3], [1, 2])(rejected=rejected)
    best, tokens = logits[rows].float().topk(min(WIDTH, vocab_size), dim=1)
    assert likely.contexts.tolist() == contexts
    np.testing.assert_array_equal(np.take_along_axis(logits[rows].float().numpy(), likely.next_tokens, 1), best)
    if dtype == torch.float32:  # no two are equal
        np.testing.assert_array_equal(likely.next_tokens, tokens)
    np.testing.assert_allclose(
        likely.probabilities, logits[rows].float().softmax(1).gather(1, tokens).numpy(), rtol=0.05
    )
