"""How sure the target is of its next token: what tells a rounding difference from a wrong output.

Knows the target model only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decoder_client.target_model import TargetModel


def logit_gap(target: TargetModel, tokens: Sequence[int]) -> float:
    """The difference between the two best logits after `tokens`, from one plain pass over all of them."""
    ids = torch.tensor([list(tokens)], device=target.device)
    states = target.hidden_states(ids, torch.ones_like(ids))
    best, second = target.logits(states[0, -1]).float().topk(2).values.tolist()
    return float(best - second)
