"""The transformers engine: answers prompts and embeds documents in padded batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from decoder_client.architectures import cache_argument
from decoder_client.reducer import KeyReducer
from decoder_client.target_model import TargetModel
from retriever_service.building.document import Document
from retriever_service.building.embed import embed
from retriever_service.building.embedded import EmbeddedBlock
from retriever_service.building.models import load_for_computing
from retriever_service.building.progress import Counter

# Rows leave the batch only when this share of it is done: taking them out copies the cache.
_DONE_SHARE = 0.25


class TransformersEngine:
    """A `TargetEngine`."""

    def __init__(self, model: str, threads: int) -> None:
        self._target = load_for_computing(model, threads)

    def answer(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        counter: Counter | None = None,
    ) -> list[list[int]]:
        """All prompts as one batch."""
        return respond(
            self._target,
            prompts,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            generator=torch.Generator(self._target.device).manual_seed(seed),
            counter=counter,
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """Empty if the model has no tokenizer."""
        return "" if self._target.tokenizer is None else self._target.decode(tokens)

    def embed(
        self,
        documents: Sequence[Document],
        reducer: KeyReducer | None,
        chosen: NDArray[np.bool_],
        counter: Counter | None = None,
    ) -> EmbeddedBlock:
        """Batch after batch of neighbours."""
        return embed(self._target, documents, reducer, chosen, counter)


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
    cache, takes_cache = DynamicCache(config=target.config), str(cache_argument(target.model))

    answers: list[list[int]] = [[] for _ in prompts]
    room = [min(max_new_tokens, target.max_length - len(prompt)) for prompt in prompts]
    rows = list(range(len(prompts)))  # the prompt of each row of the batch
    done = [False] * len(prompts)
    while True:
        inputs = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, takes_cache: cache}
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
