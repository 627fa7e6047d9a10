"""Does a model really attend along a draft tree when told to?

Configurations do not tell everything: some architectures derive positions or masks from the order of the rows. One
small pass shows it, so that a model that would verify drafts wrongly, or see the neighbours in a batch, is refused
instead of changing the output.
"""

from __future__ import annotations

import numpy as np
import torch

from decoder_client.cache import TreeCache
from decoder_client.masks import AttentionLayout
from decoder_client.target_model import TargetModel, TargetModelError
from dresd.draft_tree import ROOT, DraftTree

# What rounding may change through many layers; wrong attention changes more.
_MAX_RELATIVE_ERROR = {torch.float32: 1e-3, torch.float64: 1e-3}
_MAX_RELATIVE_ERROR_HALF = 0.1


@torch.inference_mode()
def check_tree_attention(target: TargetModel) -> None:
    """Compares states of a branching tree with those of its paths as plain text, once for each kind of attention.

    Raises:
        TargetModelError: they differ.
    """
    if target.checked_attention == target.config._attn_implementation:
        return
    prompt = [1 % target.vocab_size, 2 % target.vocab_size, 3 % target.vocab_size]
    newest, first, second, third = (token % target.vocab_size for token in (4, 5, 6, 7))
    # The path newest, second, third is interrupted by a sibling, so neither order nor position gives it away.
    tree = DraftTree(
        np.array([first, second, third], np.int32), np.array([ROOT, ROOT, 1], np.int32), np.zeros((3, 1), np.float64)
    )
    layout = AttentionLayout.of(target.config)
    cache = TreeCache()
    _plain(target, cache, prompt, 0)
    cache.fill(len(prompt))
    flat = layout.tree_input([newest], [tree], [len(prompt)], device=target.device, dtype=target.dtype)
    try:
        drafted = target.forward(flat.input_ids, flat.position_ids, flat.masks, cache, keep=4).states[0]
        cache.keep([[1, 2]])
        after = _plain(target, cache, [first], len(prompt) + 3)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise TargetModelError(_refusal(target, f"it takes no tree mask ({error})")) from error
    expected = _plain(target, TreeCache(), [*prompt, newest, second, third, first], 0)
    if not expected.isfinite().all():
        raise TargetModelError(
            f"The model {target.name!r} computes NaN or infinite numbers: its weights are damaged, or overflow in "
            f"{target.dtype}. Fetch or save it again, or load it in float32."
        )
    allowed = _MAX_RELATIVE_ERROR.get(expected.dtype, _MAX_RELATIVE_ERROR_HALF)
    for rows, wanted in ((drafted[[0, 2, 3]], expected[3:6]), (after, expected[6:])):
        relative_error = (rows.float() - wanted.float()).norm() / wanted.float().norm()
        if not relative_error <= allowed:
            raise TargetModelError(_refusal(target, "it does not attend along a tree as it does along a text"))
    target.checked_attention = target.config._attn_implementation


def _plain(target: TargetModel, cache: TreeCache, tokens: list[int], cached: int) -> torch.Tensor:
    ids = torch.tensor([tokens], device=target.device)
    positions = torch.arange(cached, cached + len(tokens), device=target.device)[None]
    return target.forward(ids, positions, None, cache, keep=len(tokens)).states[0]


def _refusal(target: TargetModel, reason: str) -> str:
    return (
        f"{type(target.model).__name__} cannot verify drafts: {reason}. "
        'Load it with attn_implementation="eager", or decode one prompt at a time without drafts.'
    )
