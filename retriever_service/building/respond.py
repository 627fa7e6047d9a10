"""The target answers the prompts itself: a datastore of its own answers fits what it will say next time best."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load, save
from transformers import DynamicCache

from decoder_client.target_model import TargetModel
from retriever_service.building.models import load_for_computing
from retriever_service.building.plan import Block
from retriever_service.building.progress import Counter
from retriever_service.building.spool import DocumentSpool

# Rows leave the batch only when this share of it is done: taking them out copies the cache.
_DONE_SHARE = 0.25


class RespondWorker:
    """A `BlockWorker` that holds the model and answers a block's prompts as one batch."""

    def __init__(
        self,
        *,
        model: str,
        spool: Path,
        out: Path,
        counters: Path,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        threads: int,
    ) -> None:
        self._target = load_for_computing(model, threads)
        self._spool = DocumentSpool(spool)
        self._out = out
        self._counters = counters
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature
        self._seed = seed

    def __call__(self, block: Block) -> int:
        """Answers a block's prompts and writes the answers; returns their number."""
        prompts = [self._spool[number].tokens.tolist() for number in block.documents]
        generator = torch.Generator(self._target.device).manual_seed(self._seed * 1_000_003 + block.number)
        with Counter(self._counters / f"respond-{block.number:06d}") as counter:
            answers = respond(
                self._target,
                prompts,
                max_new_tokens=self._max_new_tokens,
                temperature=self._temperature,
                generator=generator,
                counter=counter,
            )
        path = _answers_path(self._out, block)
        beside = path.with_suffix(".partial")
        flat = np.array([token for answer in answers for token in answer], np.int32)
        beside.write_bytes(save({"tokens": flat, "lengths": np.array([len(answer) for answer in answers], np.int64)}))
        beside.replace(path)
        return len(answers)


def read_answers(directory: Path, block: Block) -> list[list[int]]:
    """The answers to a block's prompts, in order."""
    tensors = load(_answers_path(directory, block).read_bytes())
    return [part.tolist() for part in np.split(tensors["tokens"], np.cumsum(tensors["lengths"])[:-1])]


def _answers_path(directory: Path, block: Block) -> Path:
    return directory / f"answers-{block.number:06d}.safetensors"


@torch.inference_mode()
def respond(
    target: TargetModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    counter: Counter | None = None,
) -> list[list[int]]:
    """Answers prompts together, one batch padded on the left.

    Args:
        target: the model.
        prompts: token ids, each shorter than the model's window.
        max_new_tokens: length of an answer, at most; an answer also ends where the model's window does.
        temperature: 0 is greedy.
        generator: of the sampling, on the model's device.
        counter: raised by `max_new_tokens` for each answer, as it grows.

    Returns:
        The answers, with the token that ended them if one did.
    """
    device = target.device
    longest = max(len(prompt) for prompt in prompts)
    tokens = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    tokens, mask = tokens.to(device), mask.to(device)
    positions = (mask.cumsum(-1) - 1).clamp_(min=0)
    cache = DynamicCache(config=target.config)
    cache_argument = "cache" if "cache" in inspect.signature(target.model.forward).parameters else "past_key_values"

    answers: list[list[int]] = [[] for _ in prompts]
    room = [min(max_new_tokens, target.max_length - len(prompt)) for prompt in prompts]
    rows = list(range(len(prompts)))  # the prompt of each row of the batch
    done = [False] * len(prompts)
    while True:
        inputs = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, cache_argument: cache}
        logits = target.model(**inputs, use_cache=True, logits_to_keep=1).logits[:, -1].float()
        chosen = _choose(logits, temperature, generator)
        grown = 0
        for row, token in enumerate(chosen.tolist()):
            number = rows[row]
            if done[number]:
                continue
            answers[number].append(token)
            done[number] = token in target.eos_token_ids or len(answers[number]) >= room[number]
            grown += max_new_tokens - len(answers[number]) + 1 if done[number] else 1
        if counter is not None:
            counter.add(grown)
        alive = [row for row, number in enumerate(rows) if not done[number]]
        if not alive:
            return answers
        tokens, positions = chosen[:, None], positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        if len(alive) <= (1 - _DONE_SHARE) * len(rows):
            kept = torch.tensor(alive, device=device)
            tokens, positions, mask = tokens[kept], positions[kept], mask[kept]
            cache.batch_select_indices(kept)
            rows = [rows[row] for row in alive]


def _choose(logits: torch.Tensor, temperature: float, generator: torch.Generator | None) -> torch.Tensor:
    """int64 [rows], from float32 [rows, vocab_size]."""
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)[:, 0]
