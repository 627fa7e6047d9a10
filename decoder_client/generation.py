"""Text in, text out: a target model that decodes with drafts.

    decoder = SpeculativeDecoder.from_pretrained("model", retriever="localhost:50051")
    print(decoder.generate("How do I reverse a list?", chat=True).text)

Knows texts, settings and who owns what; how a step works is the loop's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import torch

from decoder_client.drafting import Blend, ContextDrafter, DenseDrafter, Drafter
from decoder_client.drafting.dense import Retriever
from decoder_client.loop import DraftLimits, decode
from decoder_client.sampling import SamplingConfig
from decoder_client.stats import GenerationStats
from decoder_client.stopping import StopStrings
from decoder_client.target_model import Message, TargetModel, load_target_model
from decoder_client.tree_check import check_tree_attention

if TYPE_CHECKING:
    from decoder_client.retriever import RetrieverClient


@dataclass(frozen=True, slots=True)
class Generation:
    """An answer.

    Attributes:
        text: without special tokens, up to the stop string if one ended it; "" for a model without a tokenizer.
        tokens: all tokens of the answer, the one that ended it included.
        finish_reason: "end" (an end token), "stop" (a stop string) or "length".
        stats: what it cost.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: Literal["end", "stop", "length"]
    stats: GenerationStats


class SpeculativeDecoder:
    """Decodes with drafts from any number of drafters; with none, plainly. The output is the same.

    Answers one prompt at a time. Make it after forking, if at all: a retriever's connection does not survive a fork.
    """

    def __init__(
        self, target: TargetModel, drafters: Sequence[Drafter] = (), *, limits: DraftLimits | None = None
    ) -> None:
        """Decodes with `target`.

        Raises:
            TargetModelError: the model cannot verify drafts.
        """
        if drafters:
            check_tree_attention(target)
        self.target = target
        self._drafts = Blend(drafters, vocab_size=target.vocab_size)
        self._limits = limits or DraftLimits()
        self._owned: RetrieverClient | None = None

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path | TargetModel,
        retriever: str | RetrieverClient | None = None,
        *,
        nodes: int = 32,
        context: bool = True,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
    ) -> SpeculativeDecoder:
        """Loads a model and connects it to a retriever.

        Args:
            model: folder, hub name, or a target model already loaded.
            retriever: "HOST:PORT" or a client; None drafts from the text alone. A service that is down is warned
                about in the log and used once it is back.
            nodes: draft nodes a step.
            context: also draft from the text so far.
            dtype: see `load_target_model`.
            device: see `load_target_model`.

        Raises:
            TargetModelError: the model cannot be loaded or cannot verify drafts.
            RetrieverMismatchError: the retriever serves another model's datastore.
        """
        target = model if isinstance(model, TargetModel) else load_target_model(model, dtype=dtype, device=device)
        client = None
        if retriever is not None:
            from decoder_client.connecting import connect

            client = connect(retriever, target)
        decoder = cls(target, default_drafters(client, context=context), limits=DraftLimits(nodes=nodes))
        if isinstance(retriever, str):
            decoder._owned = client
        return decoder

    def generate(
        self,
        prompt: str | Sequence[Message] | Sequence[int],
        *,
        chat: bool = False,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> Generation:
        """Answers one prompt.

        Args:
            prompt: a text, the turns of a chat, or token ids.
            chat: put the text into the model's chat template as the user's turn.
            max_new_tokens: tokens of the answer, at most; the model's own length is a limit, too.
            temperature: see `SamplingConfig`, as for the next three and `seed`.
            top_k: likeliest tokens sampled from.
            top_p: probability sampled from.
            repetition_penalty: above 1 against repetition.
            stop: texts that end the answer.
            seed: of the samples; the same seed gives the same tokens with and without drafts.
            on_token: called with each token as soon as it is certain.

        Raises:
            GenerationError: the prompt is empty, too long, or holds unknown token ids.
            TargetModelError: text is given but there is no tokenizer, or a chat but no chat template.
            ValueError: a setting is out of range; names it.
        """
        if max_new_tokens < 0:
            raise ValueError(f"max_new_tokens must be 0 or more, not {max_new_tokens}")
        sampling = SamplingConfig(temperature, top_k, top_p, repetition_penalty, seed)
        stops = StopStrings([stop] if isinstance(stop, str) else stop, self.target.decode)
        tokens = self._encode(prompt, chat=chat)

        def watch(token: int) -> bool:
            if on_token is not None:
                on_token(token)
            return stops.add(token)

        answer, stats = decode(
            self.target,
            self._drafts,
            tokens,
            chooser=sampling.chooser(self.target.device),
            limits=self._limits,
            max_length=len(tokens) + max_new_tokens,
            ends=self.target.eos_token_ids,
            on_token=watch,
        )
        ended = bool(answer) and answer[-1] in self.target.eos_token_ids
        text = stops.cut(self.target.decode(answer)) if self.target.tokenizer is not None else ""
        return Generation(text, tuple(answer), "stop" if stops.stopped else "end" if ended else "length", stats)

    def _encode(self, prompt: str | Sequence[Message] | Sequence[int], *, chat: bool) -> list[int]:
        if isinstance(prompt, str):
            return self.target.encode_prompt(prompt, chat=chat)
        turns = [turn for turn in prompt if isinstance(turn, Mapping)]
        if turns:
            return self.target.encode_prompt(turns, chat=True)
        return [int(token) for token in prompt if not isinstance(token, Mapping)]

    def close(self) -> None:
        """Closes the connection that `from_pretrained` opened."""
        if self._owned is not None:
            self._owned.close()
            self._owned = None

    def __enter__(self) -> SpeculativeDecoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def default_drafters(retriever: Retriever | None, *, context: bool = True) -> list[Drafter]:
    """The drafters that the front doors use: dense if there is a retriever, and the text itself."""
    drafters: list[Drafter] = []
    if retriever is not None:
        drafters.append(DenseDrafter(retriever))
    if context:
        drafters.append(ContextDrafter())
    return drafters
