"""Which rows of a step's states and logits belong to which request, and what is read off them for all at once.

Rows lie in the order of the requests, 1 + drafted for each: row j of a request predicted its j-th new token, as far as
tokens were accepted; the rows of rejected draft tokens are of no use. Knows tensors, neither engine nor drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoder_client.drafting.drafter import LikelyTokens
from decoder_client.drafting.likeliest import likeliest_tokens
from decoder_client.engines.vllm.engine_step import EngineStep, RunningRequest
from decoder_client.likely import WIDTH

_MOST_PROMPT_ROWS = 4096
"""Of a prompt's states; keys of the places before the last ones are left out."""


@dataclass(frozen=True, slots=True)
class RequestRows:
    """One request's rows.

    Attributes:
        request: whose they are.
        first: of `EngineStep.states`; as many follow as tokens were sampled.
        prompt_first: of `EngineStep.all_states`; as many follow as `prompt_count` says.
        prompt_count: the places that the pass read, if it read the end of a text that was new to it.
    """

    request: RunningRequest
    first: int
    prompt_first: int
    prompt_count: int


def rows_of(step: EngineStep) -> list[RequestRows]:
    """The rows of each request that got a token in this step."""
    found = []
    first = read = 0
    for one in step.requests:
        if one.sampled > 0:
            count = min(one.scheduled, _MOST_PROMPT_ROWS) if one.drafted == 0 else 0
            found.append(RequestRows(one, first, read + one.scheduled - count, count))
        first += 1 + one.drafted
        read += one.scheduled
    return found


def select(rows: Sequence[tuple[int, int]], source: Tensor) -> Tensor:
    """[sum of counts, width]: runs (first, count) of rows of `source`, one after the other."""
    if len(rows) == 1:
        first, count = rows[0]
        return source[first : first + count]
    at = np.concatenate([np.arange(first, first + count) for first, count in rows])
    return source[torch.from_numpy(at).to(source.device)]


def likely_tokens(rows: Sequence[RequestRows], logits: Tensor) -> list[LikelyTokens]:
    """The target's likeliest tokens at each request's new tokens; one look at the logits for all.

    Args:
        rows: at least one.
        logits: [rows, vocab_size], the step's.
    """
    scores = select([(one.first, one.request.sampled) for one in rows], logits).float()
    width = min(WIDTH, scores.shape[1])
    if scores.device.type == "cpu":
        numbers = np.ascontiguousarray(scores.numpy())
        tokens, probabilities = likeliest_tokens(numbers, np.arange(len(numbers)), width)
    else:
        best, at = scores.topk(width, dim=1)
        tokens = at.cpu().numpy()
        probabilities = (best - scores.logsumexp(dim=1, keepdim=True)).exp().cpu().numpy()
    found = []
    begin = 0
    for one in rows:
        end = begin + one.request.sampled
        found.append(LikelyTokens(_contexts(one.request), tokens[begin:end], probabilities[begin:end]))
        begin = end
    return found


def _contexts(request: RunningRequest) -> NDArray[np.int64]:
    """int64 [sampled, 2]: the two tokens before each new one, -1 for none."""
    before = request.text[max(0, len(request.text) - request.sampled - 2) : len(request.text) - 1]
    padded = np.array([-1] * (request.sampled + 1 - len(before)) + list(before), np.int64)
    return np.stack([padded[:-1], padded[1:]], axis=1)
