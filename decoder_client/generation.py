"""Text in, text out: a target model that decodes with drafts.

    decoder = SpeculativeDecoder.from_pretrained("model", retriever="localhost:50051")
    print(decoder.generate("How do I reverse a list?", chat=True).text)

Knows texts, settings and who owns what; how a step works is the loop's business.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import torch

from decoder_client.answer_text import AnswerText
from decoder_client.default_drafter import default_drafter
from decoder_client.drafting import AnyDrafter, NoDrafter
from decoder_client.learning import LearnConfig, learn_config, listening
from decoder_client.loop import DecodeTask, DraftLimits, decode
from decoder_client.retriever_config import check_address
from decoder_client.sampling import SamplingConfig
from decoder_client.settings import check_setting
from decoder_client.stats import GenerationStats
from decoder_client.target_model import Message, TargetModel, load_target_model
from decoder_client.tree_check import check_tree_attention

if TYPE_CHECKING:
    from decoder_client.learning.sender import AnswerSender, LearnStats
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
    """Decodes with drafts, or plainly without a drafter. The output is the same.

    Not for several threads. Make it after forking, if at all: a retriever's connection does not survive a fork.

    Attributes:
        target: decides every token.
        totals: what all answers so far cost.
        retriever: where drafts come from; None for from the text alone, or with a drafter of the caller's.
    """

    def __init__(
        self, target: TargetModel, drafter: AnyDrafter | None = None, *, limits: DraftLimits | None = None
    ) -> None:
        """Decodes with `target`.

        Raises:
            TargetModelError: the model cannot verify drafts.
        """
        if drafter is not None and not isinstance(drafter, NoDrafter):
            check_tree_attention(target)
        self.target = target
        self.totals = GenerationStats()
        self.retriever: RetrieverClient | None = None
        self._drafter = drafter or NoDrafter()
        self._limits = limits or DraftLimits()
        self._sender: AnswerSender | None = None
        self._close: Callable[[], object] | None = None

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path | TargetModel,
        retriever: str | RetrieverClient | None = None,
        *,
        nodes: int | None = None,
        context: bool = True,
        learn: bool | LearnConfig | None = None,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
    ) -> SpeculativeDecoder:
        """Loads a model and connects it to a retriever.

        Args:
            model: folder, hub name, or a target model already loaded.
            retriever: "HOST:PORT" or a client; None drafts from the text alone. A service that is down is warned
                about in the log and used once it is back.
            nodes: draft nodes a step; None for as many as pay for themselves by the model's passes on this device,
                which are measured the first time. 0 decodes plainly.
            context: also draft from the text so far and from what the target said in it.
            learn: send the answers to the retriever, which makes drafts of them if it was started to learn; how, where
                it is not just True. None does what DRESD_LEARN says (1 or 0), which is not to.
            dtype: see `load_target_model`.
            device: see `load_target_model`.

        Raises:
            TargetModelError: the model cannot be loaded or cannot verify drafts.
            RetrieverError: the address is malformed, or the retriever serves another model's datastore.
            SettingError: `nodes` is out of range, or a variable DRESD_LEARN* makes no sense.
        """
        learning = learn_config(learn)
        limits = DraftLimits() if nodes is None else DraftLimits(nodes=nodes)
        if isinstance(retriever, str):
            check_address(retriever)
        target = model if isinstance(model, TargetModel) else load_target_model(model, dtype=dtype, device=device)
        client = None
        if retriever is not None:
            from decoder_client.connecting import connect

            client = connect(retriever, target)
        owned = client if isinstance(retriever, str) else None
        sender = None
        if learning is not None and client is not None:
            from decoder_client.learning.sender import AnswerSender

            sender = AnswerSender(client, learning, target.decode)
        try:
            drafter = default_drafter(target, client, nodes=nodes, context=context, sender=sender)
            decoder = cls(target, drafter, limits=limits)
        except BaseException:
            if owned is not None:
                owned.close()
            raise
        decoder.retriever, decoder._sender = client, sender
        if sender is not None or owned is not None:
            # Whoever forgets to close a decoder leaves no thread behind.
            decoder._close = weakref.finalize(decoder, _close_both, sender, owned)
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
        on_text: Callable[[str], None] | None = None,
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
            on_token: called with each token (its id) as soon as it is certain.
            on_text: called with each piece of the text as soon as it is certain; together they are the answer's text.

        Raises:
            GenerationError: the prompt is empty, too long, or holds unknown token ids.
            TargetModelError: text is given but there is no tokenizer, or a chat but no chat template.
            SettingError: a setting is out of range; names it.
            LogitsError: the model computes NaN.
        """
        sampling = SamplingConfig(temperature, top_k, top_p, repetition_penalty, seed)
        tokens = self._encode(prompt, chat=chat)
        return self._answer([tokens], [sampling], max_new_tokens, stop, on_token, on_text)[0]

    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[Message] | Sequence[int]],
        *,
        chat: bool = False,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> list[Generation]:
        """Answers several prompts together: one pass and one call to the retriever a step for all of them.

        Arguments and errors are those of `generate`, and TargetModelError is raised for a model that takes no masks to
        keep the prompts apart; the prompt number i is sampled with `seed` + i. Padding costs
        passes of the longest draft for all, so prompts and answers of similar lengths go together best.
        """
        tokens = [self._encode(prompt, chat=chat) for prompt in prompts]
        seeds = [None if seed is None else seed + place for place in range(len(tokens))]
        samplings = [SamplingConfig(temperature, top_k, top_p, repetition_penalty, one) for one in seeds]
        return self._answer(tokens, samplings, max_new_tokens, stop, None, None)

    def _answer(
        self,
        prompts: Sequence[list[int]],
        samplings: Sequence[SamplingConfig],
        max_new_tokens: int,
        stop: Sequence[str],
        on_token: Callable[[int], None] | None,
        on_text: Callable[[str], None] | None,
    ) -> list[Generation]:
        check_setting("max_new_tokens", max_new_tokens)
        target, tokenizer = self.target, self.target.tokenizer
        stops = [stop] if isinstance(stop, str) else stop
        growing = [
            AnswerText(target.decode, stops, on_text if tokenizer is not None else None, tokenizer=tokenizer)
            for _ in prompts
        ]

        def watcher(text: AnswerText) -> Callable[[int], bool]:
            def watch(token: int) -> bool:
                if on_token is not None:
                    on_token(token)
                return text.add(token)

            return watch

        tasks = [
            DecodeTask(
                prompt,
                sampling.chooser(target.device),
                len(prompt) + max_new_tokens,
                target.eos_token_ids,
                watcher(text),
            )
            for prompt, sampling, text in zip(prompts, samplings, growing, strict=True)
        ]
        generations = []
        with listening(self._drafter):
            answers = decode(target, self._drafter, tasks, self._limits)
        for text, (answer, stats) in zip(growing, answers, strict=True):
            self.totals += stats
            ended = bool(answer) and answer[-1] in target.eos_token_ids
            whole = text.finish() if tokenizer is not None else ""
            reason: Literal["end", "stop", "length"] = "stop" if text.stopped else "end" if ended else "length"
            generations.append(Generation(whole, tuple(answer), reason, stats))
        return generations

    def _encode(self, prompt: str | Sequence[Message] | Sequence[int], *, chat: bool) -> list[int]:
        if isinstance(prompt, str):
            return self.target.encode_prompt(prompt, chat=chat)
        turns = [turn for turn in prompt if isinstance(turn, Mapping)]
        if turns:
            return self.target.encode_prompt(turns, chat=True)
        return [int(token) for token in prompt if not isinstance(token, Mapping)]

    @property
    def learned(self) -> LearnStats | None:
        """What became of the answers that were to be learned; None where none are."""
        return None if self._sender is None else self._sender.stats

    def close(self) -> None:
        """Sends the answers that wait to be learned, two seconds at most, and closes the connection that
        `from_pretrained` opened.
        """
        if self._close is not None:
            self._close()

    def __enter__(self) -> SpeculativeDecoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _close_both(sender: AnswerSender | None, client: RetrieverClient | None) -> None:
    if sender is not None:
        sender.close()
    if client is not None:
        client.close()
