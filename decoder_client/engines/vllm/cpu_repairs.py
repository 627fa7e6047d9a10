"""Two faults of vLLM 0.32.0's build for processors, which spoil sampled requests with any speculative method.

- Settings of requests (temperature, top-k, top-p) are spread over their draft tokens into a copy that is thrown away,
  so that what verification reads is whatever the memory held. In a batch with a sampled request that concerns greedy
  ones, too.
- A step in which no request has a draft fails, if one of them samples with top-k.

Repaired when a `DresdProposer` is made on a processor: without that, drafts would change answers. Knows vLLM's inside.
"""

from __future__ import annotations

from functools import wraps

import torch
from torch import Tensor
from vllm.v1.sample import rejection_sampler

_REPAIRED = "_dresd_repaired"


def repair() -> None:
    """Replaces the two functions; does nothing the second time."""
    if getattr(rejection_sampler, _REPAIRED, False):
        return
    setattr(rejection_sampler, _REPAIRED, True)
    rejection_sampler.expand_batch_to_tokens = spread
    original = rejection_sampler.apply_sampling_constraints

    @wraps(original)
    def apply_sampling_constraints(logits: Tensor, *others: object) -> Tensor:
        if len(logits) == 0:
            return logits
        constrained: Tensor = original(logits, *others)
        return constrained

    rejection_sampler.apply_sampling_constraints = apply_sampling_constraints


def spread(x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: float = 0, replace_to: float = 0) -> Tensor:
    """[num_tokens]: each request's number once for each of its draft tokens; see vLLM's `expand_batch_to_tokens`.

    Args:
        x: [requests].
        cu_num_tokens: [requests], draft tokens so far, each request's own included.
        num_tokens: in all.
        replace_from: a number that is to be another one.
        replace_to: that one; the same for none.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    if replace_from != replace_to:
        x = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return torch.repeat_interleave(x, counts, output_size=num_tokens)
