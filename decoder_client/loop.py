"""The decode loop of one sequence: draft, one forward pass over the draft, accept, clean the cache, again.

Plain decoding is this loop with no drafters. The loop knows token ids only: text, stop strings and services are its
callers' business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from decoder_client.cache import TreeCache
from decoder_client.drafting.blend import Blend
from decoder_client.drafting.drafter import DraftRequest
from decoder_client.errors import DecoderError
from decoder_client.masks import AttentionLayout
from decoder_client.sampling import Chooser
from decoder_client.stats import GenerationStats
from decoder_client.target_model import ForwardOutput, TargetModel
from decoder_client.verification import accept
from dresd.draft_tree import DraftTree

_NO_DRAFT = DraftTree.empty()


class GenerationError(DecoderError):
    """A prompt or a setting cannot be decoded with."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """How much may be drafted a step. Checks itself: ValueError names the field.

    Attributes:
        nodes: nodes of a draft tree; 0 for plain decoding.
        max_depth: its depth.
    """

    nodes: int = 32
    max_depth: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.nodes <= 1024:
            raise ValueError(f"nodes must lie in 0..1024, not {self.nodes}")
        if self.max_depth < 1:
            raise ValueError(f"max_depth must be 1 or more, not {self.max_depth}")


@torch.inference_mode()
def decode(
    target: TargetModel,
    drafts: Blend,
    prompt: Sequence[int],
    *,
    chooser: Chooser,
    limits: DraftLimits,
    max_length: int,
    ends: Collection[int],
    on_token: Callable[[int], bool] | None = None,
) -> tuple[list[int], GenerationStats]:
    """Answers one prompt.

    Args:
        target: decides every token.
        drafts: guess them; whatever they guess, the answer is the target's.
        prompt: token ids, at least one.
        chooser: how the target chooses.
        limits: of the drafts.
        max_length: of prompt and answer together, at most; also bounded by the model's.
        ends: tokens that end the answer (and are part of it).
        on_token: called with every token of the answer, in order; True ends the answer there.

    Returns:
        The answer's tokens, and what they cost.

    Raises:
        GenerationError: the prompt is empty, outside the vocabulary or too long for the model.
    """
    _check_prompt(target, prompt)
    started = time.perf_counter()
    stats = GenerationStats()
    text = list(prompt)
    end_length = min(max_length, target.max_length)
    layout = AttentionLayout.of(target.config)
    cache = TreeCache()
    drafts.begin()
    chooser.begin(text, max(0, end_length - len(text)), target.device)

    def extend(tokens: list[int]) -> bool:
        """Adds the target's tokens to the text; True when the answer ends among them."""
        for token in tokens:
            text.append(token)
            ended = token in ends or len(text) >= end_length
            if (on_token is not None and on_token(token)) or ended:
                return True
        return False

    done = len(text) >= end_length
    state = None
    tree = _NO_DRAFT
    while not done:
        drafting = time.perf_counter()
        if state is not None and drafts:
            tree = _draft(drafts, limits, text, state, end_length, stats)
        forwarding = time.perf_counter()
        cached = 0 if state is None else len(text) - 1
        output = _forward(target, layout, cache, text[cached:], tree, cached)
        choose = chooser.choices(output.logits, text)
        verifying = time.perf_counter()
        accepted = accept(tree, choose, ends)
        if len(tree):
            cache.keep(cached, accepted.nodes)
        is_prompt = state is None
        state = output.states[accepted.last_row]
        before = len(text)
        done = extend(accepted.tokens)
        stats.draft_s += forwarding - drafting
        stats.forward_s += verifying - forwarding
        stats.verify_s += time.perf_counter() - verifying
        stats.forwards += 1
        if not is_prompt:
            stats.steps += 1
            stats.steps_with_draft += len(tree) > 0
            stats.drafted += len(tree)
            stats.accepted += min(len(accepted.nodes), len(text) - before)
    answer = text[len(prompt) :]
    stats.tokens = len(answer)
    stats.total_s = time.perf_counter() - started
    return answer, stats


def _draft(
    drafts: Blend, limits: DraftLimits, text: list[int], state: torch.Tensor, end_length: int, stats: GenerationStats
) -> DraftTree:
    # The target adds one token to what it accepts, so a deeper node could never be used.
    depth = min(limits.max_depth, end_length - len(text) - 1)
    if depth < 1 or limits.nodes < 1:
        return _NO_DRAFT
    return drafts.propose(DraftRequest(text, state, limits.nodes, depth, stats))


def _forward(
    target: TargetModel, layout: AttentionLayout, cache: TreeCache, tokens: list[int], tree: DraftTree, cached: int
) -> ForwardOutput:
    """Runs the tokens not yet cached, with a draft behind the last one if there is one."""
    if len(tree):
        flat = layout.tree_input(tokens[-1], tree, cached, device=target.device, dtype=target.dtype)
        return target.forward(flat.input_ids, flat.position_ids, flat.masks, cache, keep=1 + len(tree))
    ids = torch.tensor([tokens], device=target.device)
    positions = torch.arange(cached, cached + len(tokens), device=target.device)[None]
    return target.forward(ids, positions, None, cache, keep=1)


def _check_prompt(target: TargetModel, prompt: Sequence[int]) -> None:
    if len(prompt) == 0:
        raise GenerationError("The prompt is empty. Give at least one token.")
    if min(prompt) < 0 or max(prompt) >= target.vocab_size:
        raise GenerationError(
            f"The prompt holds token ids outside 0..{target.vocab_size - 1}. Encode it with this model's tokenizer."
        )
    if len(prompt) >= target.max_length:
        raise GenerationError(
            f"The prompt has {len(prompt)} tokens, but the model's window is {target.max_length}. Shorten the prompt."
        )
