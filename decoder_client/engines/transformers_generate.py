"""transformers' own `generate`, decoding with drafts:

    model.generate(**inputs, custom_generate=dresd_generate("localhost:50051"))

`generate` still prepares everything (logits processors, stopping criteria, lengths); only its loop is replaced by
ours. The output is what `generate` would return. Knows transformers' calling convention, nothing of how drafts work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from decoder_client.connecting import connect
from decoder_client.drafting import Blend
from decoder_client.generation import default_drafters
from decoder_client.loop import DraftLimits, GenerationError, decode
from decoder_client.sampling import Chooser, GreedyChooser, ProcessedChooser
from decoder_client.target_model import TargetModel, find_tokenizer
from decoder_client.tree_check import check_tree_attention

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.generation import StoppingCriteriaList

    from decoder_client.retriever import RetrieverClient

_KNOWN_INPUTS = {"attention_mask", "position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep"}
_RECORDS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


class Streamer(Protocol):
    """What transformers' streamers have in common."""

    def put(self, value: Tensor) -> None:
        """Takes token ids: first the prompt's, then the answer's."""

    def end(self) -> None:
        """The answer is complete."""


def dresd_generate(
    retriever: str | RetrieverClient | None = None,
    *,
    nodes: int = 32,
    context: bool = True,
    tokenizer: PreTrainedTokenizerBase | None = None,
    streamer: Streamer | None = None,
) -> Callable[..., Tensor | GenerateDecoderOnlyOutput]:
    """A function for `generate(..., custom_generate=...)`; keep it to use it again.

    Args:
        retriever: "HOST:PORT" or a client; None drafts from the text alone.
        nodes: draft nodes a step.
        context: also draft from the text so far.
        tokenizer: of the model, part of its identity; loaded from where the model came from if needed and not given.
        streamer: gets the prompt and then each token. Give it here: `generate` does not hand its own one on.

    Raises (when called by `generate`):
        GenerationError: what is asked for cannot be decoded with drafts; says what.
        TargetModelError: the model cannot verify drafts.
        RetrieverMismatchError: the retriever serves another model's datastore.
    """
    limits = DraftLimits(nodes=nodes)
    ready: list[tuple[TargetModel, Blend]] = []

    def prepare(model: PreTrainedModel) -> tuple[TargetModel, Blend]:
        if not ready or ready[0][0].model is not model:
            target = TargetModel(model, tokenizer)
            check_tree_attention(target)
            client = None
            if retriever is not None:
                target.tokenizer = tokenizer or find_tokenizer(target.name)
                client = connect(retriever, target)
            ready[:] = [(target, Blend(default_drafters(client, context=context), vocab_size=target.vocab_size))]
        return ready[0]

    def generate(
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,  # noqa: FBT001, FBT002 - transformers' convention
        **model_inputs: object,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        _refuse_unsupported(input_ids, generation_config, synced_gpus=synced_gpus, model_inputs=model_inputs)
        target, drafts = prepare(model)
        prompt = input_ids[0].tolist()
        text = torch.zeros(1, generation_config.max_length, dtype=input_ids.dtype, device=input_ids.device)
        text[0, : len(prompt)] = input_ids[0]
        filled = len(prompt)
        if streamer is not None:
            streamer.put(input_ids.cpu())

        def on_token(token: int) -> bool:
            nonlocal filled
            text[0, filled] = token
            filled += 1
            if streamer is not None:
                streamer.put(torch.tensor([token]))
            return bool(stopping_criteria(text[:, :filled], None).all())

        decode(
            target,
            drafts,
            prompt,
            chooser=_chooser(generation_config, logits_processor),
            limits=limits,
            max_length=generation_config.max_length,
            ends=_ends(generation_config),
            on_token=on_token,
        )
        if streamer is not None:
            streamer.end()
        sequences = text[:, :filled]
        return (
            GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences
        )

    return generate


def _chooser(config: GenerationConfig, processors: LogitsProcessorList) -> Chooser:
    if config.do_sample or len(processors):
        return ProcessedChooser(processors, sample=bool(config.do_sample))
    return GreedyChooser()


def _ends(config: GenerationConfig) -> frozenset[int]:
    ids = config.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset(int(i) for i in (ids if isinstance(ids, (list, tuple)) else [ids]))


def _refuse_unsupported(
    input_ids: Tensor, config: GenerationConfig, *, synced_gpus: bool, model_inputs: dict[str, object]
) -> None:
    unknown = sorted(name for name, value in model_inputs.items() if name not in _KNOWN_INPUTS and value is not None)
    records = [name for name in _RECORDS if getattr(config, name, None)]
    mask, cache = model_inputs.get("attention_mask"), model_inputs.get("cache", model_inputs.get("past_key_values"))
    positions = model_inputs.get("position_ids")
    reason = None
    if input_ids.shape[0] != 1:
        reason = f"a batch of {input_ids.shape[0]} sequences; pass one prompt, and num_return_sequences=1"
    elif (config.num_beams or 1) > 1:
        reason = "beam search; leave num_beams at 1"
    elif synced_gpus:
        reason = "synced_gpus; decode on one process"
    elif records and config.return_dict_in_generate:
        reason = f"{' and '.join(records)}; ask for sequences only"
    elif unknown:
        reason = f"the inputs {', '.join(unknown)}; pass input_ids only"
    elif isinstance(mask, Tensor) and not bool(mask.all()):
        reason = "padding; pass the prompt without padding, or an attention_mask of ones"
    elif getattr(cache, "get_seq_length", int)() > 0:
        reason = "a cache that is filled already; pass the whole text instead"
    elif isinstance(positions, Tensor) and positions.flatten().tolist() != list(range(input_ids.shape[1])):
        reason = "position_ids of your own; leave them out"
    if reason is not None:
        raise GenerationError(f"dresd_generate does not support {reason}.")
