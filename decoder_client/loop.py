"""The decode loop: draft, one forward pass over the drafts, accept, clean the cache, again; for one sequence or many.

Plain decoding is this loop with no drafter. Sequences of a batch share the passes and the drafter's calls; each has
its own text, choices, limits and end. The loop knows token ids only: text, stop strings and services are its callers'
business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic

import torch
from torch import Tensor

from decoder_client.cache import TreeCache
from decoder_client.drafting.drafter import Drafter, DraftRequest, Outcome, Session
from decoder_client.errors import DecoderError
from decoder_client.likely import LikelyRows
from decoder_client.masks import AttentionLayout
from decoder_client.sampling import Chooser
from decoder_client.settings import check_setting
from decoder_client.stats import GenerationStats
from decoder_client.target_model import ForwardOutput, TargetModel
from decoder_client.tree_check import check_tree_attention
from decoder_client.verification import accept
from dresd.draft_tree import DraftTree

_NO_DRAFT = DraftTree.empty()


class GenerationError(DecoderError):
    """A prompt or a setting cannot be decoded with."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """How much may be drafted a step. Checks itself: SettingError names the field.

    Attributes:
        nodes: nodes of a draft tree, at most; 0 for plain decoding.
        max_depth: its depth.
    """

    nodes: int = 64
    max_depth: int = 16

    def __post_init__(self) -> None:
        check_setting("nodes", self.nodes)
        check_setting("max_depth", self.max_depth)


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """One sequence to decode.

    Attributes:
        prompt: token ids, at least one.
        chooser: how the target chooses; this sequence's own.
        max_length: of prompt and answer together, at most; also bounded by the model's.
        ends: tokens that end the answer (and are part of it).
        on_token: called with every token of the answer, in order; True ends the answer there.
    """

    prompt: Sequence[int]
    chooser: Chooser
    max_length: int
    ends: Collection[int]
    on_token: Callable[[int], bool] | None = None


@dataclass(slots=True)
class _Sequence(Generic[Session]):
    """A task under way.

    Attributes:
        text: prompt and answer so far.
        end_length: of the text, at most.
        session: the drafter's.
        done: the answer has ended.
        tree: drafted for the coming pass.
        state: [hidden_size], the one that predicted the newest token; None before the prompt's pass.
    """

    task: DecodeTask
    text: list[int]
    end_length: int
    session: Session
    done: bool
    tree: DraftTree = _NO_DRAFT
    state: Tensor | None = None
    stats: GenerationStats = field(default_factory=GenerationStats)

    def advance(self, nodes: Sequence[int], tokens: Sequence[int]) -> int:
        """Adds the target's tokens up to the one that ends the answer; returns how many."""
        count = 0
        for token in tokens:
            self.text.append(token)
            count += 1
            ended = token in self.task.ends or len(self.text) >= self.end_length
            if (self.task.on_token is not None and self.task.on_token(token)) or ended:
                self.done = True
                break
        if self.state is not None:
            self.stats.steps += 1
            self.stats.steps_with_draft += len(self.tree) > 0
            self.stats.drafted += len(self.tree)
            self.stats.accepted += min(len(nodes), count)
        return count


@torch.inference_mode()
def decode(
    target: TargetModel, drafter: Drafter[Session], tasks: Sequence[DecodeTask], limits: DraftLimits
) -> list[tuple[list[int], GenerationStats]]:
    """Answers prompts together.

    Args:
        target: decides every token.
        drafter: guesses them; whatever it guesses, the answers are the target's.
        tasks: at least one.
        limits: of each sequence's drafts.

    Returns:
        Each answer's tokens and what they cost; seconds that a batch spends together are shared out evenly, so that
        the sum over the batch is the time it took.

    Raises:
        GenerationError: a prompt is empty, outside the vocabulary or too long for the model.
        TargetModelError: there are several tasks, and the model takes no masks that keep them apart.
        LogitsError: the model computes NaN.
    """
    for task in tasks:
        _check_prompt(target, task.prompt)
    if len(tasks) > 1:
        check_tree_attention(target)
    return _Loop(target, drafter, tasks, limits).run()


class _Loop(Generic[Session]):
    """One call of `decode`."""

    def __init__(
        self, target: TargetModel, drafter: Drafter[Session], tasks: Sequence[DecodeTask], limits: DraftLimits
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._limits = limits
        self._layout = AttentionLayout.of(target.config)
        self._sequences: list[_Sequence[Session]] = []
        for task in tasks:
            end_length = min(task.max_length, target.max_length)
            done = len(task.prompt) >= end_length
            self._sequences.append(_Sequence(task, list(task.prompt), end_length, drafter.start(task.prompt), done))

    def run(self) -> list[tuple[list[int], GenerationStats]]:
        alive = [one for one in self._sequences if not one.done]
        cache = TreeCache.join([self._prefill(one) for one in alive])
        while True:
            going_on = [place for place, one in enumerate(alive) if not one.done]
            if not going_on:
                break
            if len(going_on) < len(alive):
                alive = [alive[place] for place in going_on]
                cache.select(going_on)
            self._step(alive, cache)
        answers = []
        for one in self._sequences:
            answer = one.text[len(one.task.prompt) :]
            one.stats.tokens = len(answer)
            answers.append((answer, one.stats))
        return answers

    def _prefill(self, one: _Sequence[Session]) -> TreeCache:
        """The prompt's pass, which gives the first token."""
        started = time.perf_counter()
        cache = TreeCache()
        one.task.chooser.begin(one.text, one.end_length - len(one.text), self._target.device)
        ids = torch.tensor([one.text], device=self._target.device)
        positions = torch.arange(len(one.text), device=ids.device)[None]
        output = self._target.forward(ids, positions, None, cache, keep=1)
        cache.fill(len(one.text))
        choose = one.task.chooser.choices(output.logits[0], one.text)
        chosen = time.perf_counter()
        one.advance([], [choose(0, [])])
        one.state = output.states[0, -1]
        accepted = time.perf_counter()
        self._tell(one, [], 1, output.logits[0], output.states[0])
        one.stats.forwards = 1
        one.stats.add_seconds(chosen - started, accepted - chosen, time.perf_counter() - accepted)
        return cache

    def _step(self, alive: Sequence[_Sequence[Session]], cache: TreeCache) -> None:
        """One pass for all sequences that go on."""
        started = time.perf_counter()
        self._draft(alive)
        drafted = time.perf_counter()
        output = self._forward(alive, cache)
        choices = [
            one.task.chooser.choices(output.logits[place, : 1 + len(one.tree)], one.text)
            for place, one in enumerate(alive)
        ]
        chosen = time.perf_counter()
        outcomes = [accept(one.tree, choose, one.task.ends) for one, choose in zip(alive, choices, strict=True)]
        cache.keep([outcome.nodes for outcome in outcomes])
        counts = []
        for place, (one, outcome) in enumerate(zip(alive, outcomes, strict=True)):
            one.state = output.states[place, outcome.last_row]
            counts.append(one.advance(outcome.nodes, outcome.tokens))
        accepted = time.perf_counter()
        for place, (one, outcome, count) in enumerate(zip(alive, outcomes, counts, strict=True)):
            path = [0, *(node + 1 for node in outcome.nodes)]
            self._tell(one, outcome.nodes, count, output.logits[place, : 1 + len(one.tree)], output.states[place, path])
        told = time.perf_counter()
        for one in alive:
            one.stats.forwards += 1
            one.stats.add_seconds(
                (chosen - drafted) / len(alive),
                (accepted - chosen) / len(alive),
                (drafted - started + told - accepted) / len(alive),
            )

    def _draft(self, alive: Sequence[_Sequence[Session]]) -> None:
        asking: list[_Sequence[Session]] = []
        requests: list[DraftRequest[Session]] = []
        nodes = self._limits.nodes
        for one in alive:
            one.tree = _NO_DRAFT
            # The target adds one token to what it accepts, so a deeper node could never be used.
            depth = min(self._limits.max_depth, one.end_length - len(one.text) - 1)
            if nodes > 0 and depth > 0 and one.state is not None:
                asking.append(one)
                requests.append(DraftRequest(one.session, one.text, one.state, nodes, depth, one.stats))
        if requests:
            for one, tree in zip(asking, self._drafter.propose(requests), strict=True):
                one.tree = tree

    def _forward(self, alive: Sequence[_Sequence[Session]], cache: TreeCache) -> ForwardOutput:
        """Runs every sequence's newest token with its draft behind it."""
        newest = [one.text[-1] for one in alive]
        trees = [one.tree for one in alive]
        device = self._target.device
        if len(alive) == 1 and len(trees[0]) == 0:
            positions = torch.tensor([cache.lengths], device=device)
            return self._target.forward(torch.tensor([newest], device=device), positions, None, cache, keep=1)
        flat = self._layout.tree_input(newest, trees, cache.lengths, device=device, dtype=self._target.dtype)
        rows = flat.input_ids.shape[1]
        return self._target.forward(flat.input_ids, flat.position_ids, flat.masks, cache, keep=rows)

    def _tell(self, one: _Sequence[Session], nodes: Sequence[int], count: int, logits: Tensor, states: Tensor) -> None:
        """Lets the drafter know what a pass showed."""
        begin = len(one.text) - count
        likely = LikelyRows(logits, one.tree, nodes, one.text[max(0, begin - 2) : begin])
        self._drafter.observe(one.session, Outcome(one.text, count, one.tree, nodes, states, likely))


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
