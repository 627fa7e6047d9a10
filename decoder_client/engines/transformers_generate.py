"""transformers' own `generate`, decoding with drafts:

    model.generate(**inputs, custom_generate=dresd_generate("localhost:50051"))

`generate` still prepares everything (logits processors, stopping criteria, lengths); only its loop is replaced by
ours. The output is what `generate` would return. Knows transformers' calling convention, nothing of how drafts work.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from decoder_client.connecting import connect
from decoder_client.default_drafter import default_drafter
from decoder_client.drafting import AnyDrafter
from decoder_client.learning import LearnConfig, learn_config, listening
from decoder_client.loop import DecodeTask, DraftLimits, GenerationError, decode
from decoder_client.retriever_config import check_address
from decoder_client.sampling import Chooser, GreedyChooser, ProcessedChooser
from decoder_client.settings import check_setting
from decoder_client.stats import GenerationStats
from decoder_client.target_model import TargetModel, find_tokenizer

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.generation import StoppingCriteriaList

    from decoder_client.retriever import RetrieverClient

_KNOWN_INPUTS = {"attention_mask", "position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep"}
_RECORDS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
# These hold all rows of a batch, or what they were called with before; rows of ours come one at a time.
_BATCH_SETTINGS = {
    EncoderNoRepeatNGramLogitsProcessor: "encoder_no_repeat_ngram_size",
    EncoderRepetitionPenaltyLogitsProcessor: "encoder_repetition_penalty",
    PrefixConstrainedLogitsProcessor: "prefix_allowed_tokens_fn",
    SynthIDTextWatermarkLogitsProcessor: "watermarking_config",
    UnbatchedClassifierFreeGuidanceLogitsProcessor: "guidance_scale",
}


class Streamer(Protocol):
    """What transformers' streamers have in common."""

    def put(self, value: Tensor) -> None:
        """Takes token ids: first the prompt's, then the answer's."""

    def end(self) -> None:
        """The answer is complete."""


def dresd_generate(
    retriever: str | RetrieverClient | None = None,
    *,
    nodes: int | None = None,
    context: bool = True,
    tokenizer: PreTrainedTokenizerBase | None = None,
    streamer: Streamer | None = None,
    learn: bool | LearnConfig | None = None,
) -> DraftedGenerate:
    """What to hand to `generate(..., custom_generate=...)`; keep it to use it again.

    Args:
        retriever: "HOST:PORT" or a client; None drafts from the text alone.
        nodes: draft nodes a step; None for as many as pay for themselves, see `SpeculativeDecoder.from_pretrained`.
        context: also draft from the text so far and from what the target said in it.
        tokenizer: of the model, part of its identity; loaded from where the model came from if needed and not given.
        learn: send the answers to the retriever to be learned, see `SpeculativeDecoder.from_pretrained`.
        streamer: gets the prompt and then each token. Give it here: `generate` does not hand its own one on.

    Raises:
        SettingError: `nodes` is out of range.
        RetrieverError: the address is malformed.

    Raises (when called by `generate`):
        GenerationError: what is asked for cannot be decoded with drafts; says what.
        SettingError: a setting of the samples is out of range.
        TargetModelError: the model cannot verify drafts.
        RetrieverMismatchError: the retriever serves another model's datastore.
    """
    if nodes is not None:
        check_setting("nodes", nodes)
    if isinstance(retriever, str):
        check_address(retriever)
    return DraftedGenerate(
        retriever, nodes=nodes, context=context, tokenizer=tokenizer, streamer=streamer, learn=learn_config(learn)
    )


class DraftedGenerate:
    """The loop that `generate` calls instead of its own; made by `dresd_generate`.

    Holds the model it was last called for, and the connection to an address. The connection is closed by `close`, for
    another model, or when this object is collected.

    Attributes:
        stats: what each row of the latest call cost, and what drafts gained.
        totals: what all rows of all calls cost.
        retriever: where drafts come from; None before the first call, or for from the text alone.
    """

    def __init__(
        self,
        retriever: str | RetrieverClient | None,
        *,
        nodes: int | None,
        context: bool,
        tokenizer: PreTrainedTokenizerBase | None,
        streamer: Streamer | None,
        learn: LearnConfig | None,
    ) -> None:
        self._learn = learn
        self._end_sending: Callable[[], object] | None = None
        self._retriever = retriever
        self._nodes = nodes
        self._limits = DraftLimits() if nodes is None else DraftLimits(nodes=nodes)
        self._context = context
        self._tokenizer = tokenizer
        self._streamer = streamer
        self._ready: tuple[TargetModel, AnyDrafter] | None = None
        self._disconnect: Callable[[], object] | None = None
        self.stats: tuple[GenerationStats, ...] = ()
        self.totals = GenerationStats()
        self.retriever: RetrieverClient | None = None

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,  # noqa: FBT001, FBT002 - transformers' convention
        **model_inputs: object,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Decodes the rows of a batch together; called by `generate`."""
        _refuse_unsupported(generation_config, synced_gpus=synced_gpus, model_inputs=model_inputs)
        _check_sampling(generation_config)
        if len(input_ids) > 1:
            _refuse_for_batches(self._streamer, logits_processor)
        target, drafter = self._prepare(model)
        rows = [
            _Row(ids, skip, generation_config.max_length, stopping_criteria, self._streamer)
            for ids, skip in zip(input_ids, _padding(input_ids, model_inputs), strict=True)
        ]
        if self._streamer is not None:
            self._streamer.put(input_ids.cpu())
        tasks = [
            DecodeTask(
                row.prompt,
                _chooser(generation_config, logits_processor, row.padding, place),
                generation_config.max_length - row.skip,
                _ends(generation_config),
                row.add,
            )
            for place, row in enumerate(rows)
        ]
        with listening(drafter):
            self.stats = tuple(stats for _, stats in decode(target, drafter, tasks, self._limits))
        self.totals = sum(self.stats, self.totals)
        if self._streamer is not None:
            self._streamer.end()
        sequences = _together(rows, generation_config, input_ids)
        return (
            GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences
        )

    def close(self) -> None:
        """Closes the connection to the address. The next call opens another one."""
        self._ready = None
        if self._end_sending is not None:
            self._end_sending()
        if self._disconnect is not None:
            self._disconnect()

    def _prepare(self, model: PreTrainedModel) -> tuple[TargetModel, AnyDrafter]:
        if self._ready is not None and self._ready[0].model is model:
            return self._ready
        self.close()
        target = TargetModel(model, self._tokenizer)
        client = None
        if self._retriever is not None:
            target.tokenizer = self._tokenizer or find_tokenizer(target.name)
            client = connect(self._retriever, target)
            if client is not self._retriever:
                self._disconnect = weakref.finalize(self, client.close)
        self.retriever = client
        sender = None
        if self._learn is not None and client is not None:
            from decoder_client.learning.sender import AnswerSender

            sender = AnswerSender(client, self._learn, target.decode)
            self._end_sending = weakref.finalize(self, sender.close)
        drafter = default_drafter(target, client, nodes=self._nodes, context=self._context, sender=sender)
        self._ready = target, drafter
        return self._ready


class _Row:
    """One sequence of a batch as `generate` counts it: with the padding in front."""

    def __init__(
        self, ids: Tensor, skip: int, max_length: int, criteria: StoppingCriteriaList, streamer: Streamer | None
    ) -> None:
        self.skip = skip
        self.padding = ids[None, :skip]
        self.prompt: list[int] = ids[skip:].tolist()
        self._text = torch.zeros(1, max_length, dtype=ids.dtype, device=ids.device)
        self._text[0, : len(ids)] = ids
        self._filled = len(ids)
        self._criteria = criteria
        self._streamer = streamer

    def add(self, token: int) -> bool:
        """Takes the next token; whether a stopping criterion is met."""
        self._text[0, self._filled] = token
        self._filled += 1
        if self._streamer is not None:
            self._streamer.put(torch.tensor([token]))
        return bool(self._criteria(self.text[None], None).all())

    @property
    def text(self) -> Tensor:
        """int64 [length]: padding, prompt and answer so far."""
        return self._text[0, : self._filled]


def _padding(input_ids: Tensor, model_inputs: dict[str, object]) -> list[int]:
    """How many tokens of padding stand in front of each prompt."""
    mask = model_inputs.get("attention_mask")
    if not isinstance(mask, Tensor):
        return [0] * len(input_ids)
    return (mask.shape[1] - mask.sum(dim=1)).tolist()


def _together(rows: list[_Row], config: GenerationConfig, input_ids: Tensor) -> Tensor:
    """int64 [rows, longest]: shorter ones are padded behind, as `generate` does it."""
    longest = max(len(row.text) for row in rows)
    pad = config.pad_token_id
    if pad is None:
        pad = next(iter(_ends(config)), 0)
    sequences = input_ids.new_full((len(rows), longest), int(pad))
    for own, row in zip(sequences, rows, strict=True):
        own[: len(row.text)] = row.text
    return sequences


def _chooser(config: GenerationConfig, processors: LogitsProcessorList, padding: Tensor, place: int) -> Chooser:
    """Of the row number `place`; `padding`: int64 [1, n], what `generate` shows processors in front of its prompt."""
    if not config.do_sample and not len(processors):
        return GreedyChooser()
    own = LogitsProcessorList([_of_row(processor, place) for processor in processors])

    def padded(text: Tensor, scores: Tensor) -> Tensor:
        processed: Tensor = own(torch.cat([padding.to(text.device), text], dim=1), scores)
        return processed

    return ProcessedChooser(padded if padding.numel() else own, sample=bool(config.do_sample))


def _of_row(processor: LogitsProcessor, place: int) -> LogitsProcessor:
    """The same for one row: a repetition penalty knows the padding of each row of the batch."""
    if isinstance(processor, RepetitionPenaltyLogitsProcessor):
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, Tensor):
            return RepetitionPenaltyLogitsProcessor(processor.penalty, ignored[place : place + 1])
    return processor


def _check_sampling(config: GenerationConfig) -> None:
    """What transformers lets pass and would fail on in the middle of an answer."""
    for name in ("temperature", "repetition_penalty"):
        value = getattr(config, name, None)
        if value is not None and (config.do_sample or name != "temperature"):
            check_setting(name, value)


def _ends(config: GenerationConfig) -> list[int]:
    ids = config.eos_token_id
    if ids is None:
        return []
    return [int(i) for i in (ids if isinstance(ids, (list, tuple)) else [ids])]


def _refuse_unsupported(config: GenerationConfig, *, synced_gpus: bool, model_inputs: dict[str, object]) -> None:
    unknown = sorted(name for name, value in model_inputs.items() if name not in _KNOWN_INPUTS and value is not None)
    records = [name for name in _RECORDS if getattr(config, name, None)]
    mask, cache = model_inputs.get("attention_mask"), model_inputs.get("cache", model_inputs.get("past_key_values"))
    positions = model_inputs.get("position_ids")
    reason = None
    if (config.num_beams or 1) > 1:
        reason = "beam search; leave num_beams at 1"
    elif synced_gpus:
        reason = "synced_gpus; decode on one process"
    elif records and config.return_dict_in_generate:
        reason = f"{' and '.join(records)}; ask for sequences only"
    elif unknown:
        reason = f"the inputs {', '.join(unknown)}; pass input_ids only"
    elif isinstance(mask, Tensor) and bool((mask[:, 1:] < mask[:, :-1]).any()):
        reason = "padding behind or within a prompt; pad on the left"
    elif getattr(cache, "get_seq_length", int)() > 0:
        reason = "a cache that is filled already; pass the whole text instead"
    elif isinstance(positions, Tensor) and not _in_order(positions, mask):
        reason = "position_ids of your own; leave them out"
    if reason is not None:
        raise GenerationError(f"dresd_generate does not support {reason}.")


def _refuse_for_batches(streamer: Streamer | None, processors: LogitsProcessorList) -> None:
    if streamer is not None:
        raise GenerationError("A streamer takes one prompt at a time. Pass one, or leave the streamer out.")
    for processor in processors:
        for kind, name in _BATCH_SETTINGS.items():
            if isinstance(processor, kind):
                raise GenerationError(f"dresd_generate does not support {name} for a batch; pass one prompt at a time.")


def _in_order(positions: Tensor, mask: object) -> bool:
    """Whether each row's tokens stand at 0, 1, 2, ...; what padding is said to stand at makes no difference."""
    ones = mask if isinstance(mask, Tensor) else torch.ones_like(positions)
    return bool(((positions == ones.cumsum(-1) - 1) | (ones == 0)).all())
