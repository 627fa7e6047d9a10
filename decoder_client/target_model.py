"""The target model: any decoder-only transformers model, reduced to what building and decoding ask of it.

The one state that matters is what the language model head reads, captured at the head itself, so that it means the
same for every architecture. This module knows nothing of drafts, datastores or services.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from decoder_client.architectures import cache_argument, refusal
from decoder_client.cpu_attention import use_cpu_attention
from decoder_client.cpu_linear import can_pack, pack_linear_layers
from decoder_client.errors import DecoderError
from decoder_client.fingerprint import remember_fingerprint, tokenizer_hash, weights_fingerprint
from decoder_client.model_source import SourceError, is_folder, local_only, reason_of
from dresd.identity import ModelIdentity

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.cache_utils import Cache

Message = Mapping[str, str]
"""One turn of a chat: {"role": ..., "content": ...}."""

UNLIMITED = 2**31 - 1
"""`TargetModel.max_length` of a model whose configuration states none."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


class TargetModelError(DecoderError):
    """The target model cannot be loaded or cannot be used here: one sentence and a hint."""


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """What one pass over B sequences gives.

    Attributes:
        logits: [B, keep, vocab_size], of the last tokens, in the model's dtype.
        states: [B, T, hidden_size], what the language model head reads, of all tokens.
    """

    logits: Tensor
    states: Tensor


class TargetModel:
    """A decoder-only model with its tokenizer.

    Raises `TargetModelError` for what the decode loop cannot verify drafts on: encoder-decoder models, recurrent or
    linear-attention layers, models without a language model head or explicit positions, attention kernels that take
    no mask. Puts the model into evaluation mode. May be used by several threads.

    Attributes:
        is_packed: its linear layers are (see `pack_linear_layers`).
        checked_attention: the implementation with which it was seen to attend along draft trees; "" before that.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str = "",
        revision: str = "",
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name or str(getattr(model.config, "name_or_path", ""))
        self.revision = revision
        self.config = model.config.get_text_config(decoder=True)
        reason = refusal(model, self.config)
        if reason is not None:
            raise TargetModelError(reason)
        self._head: torch.nn.Module = model.get_output_embeddings()
        self.vocab_size, self.hidden_size = (int(size) for size in self._head.weight.shape)
        self._cache_argument = str(cache_argument(model))
        self._identity: ModelIdentity | None = None
        self.is_packed = False
        self.checked_attention = ""

    @property
    def device(self) -> torch.device:
        """Where token ids must be for a forward pass."""
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Of the states, and of the masks that are added to attention scores."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def max_length(self) -> int:
        """Positions the model was made for; `UNLIMITED` if its configuration states none."""
        length = getattr(self.config, "max_position_embeddings", None)
        rope = getattr(self.config, "rope_parameters", None) or {}
        # Beyond this length LongRoPE changes the rotation of every earlier position, which no cache can follow.
        if rope.get("rope_type") == "longrope":
            length = rope.get("original_max_position_embeddings") or length
        return int(length) if length else UNLIMITED

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end an answer: the generation configuration's, else the model's, else the tokenizer's."""
        generation = getattr(self.model, "generation_config", None)
        for source in (generation, self.config, self.tokenizer):
            ids = getattr(source, "eos_token_id", None)
            if ids is not None:
                return frozenset(int(i) for i in (ids if isinstance(ids, (list, tuple)) else [ids]))
        return frozenset()

    def identity(self) -> ModelIdentity:
        """What a datastore records of the model it was built with."""
        if self._identity is None:
            self._identity = ModelIdentity(
                name=self.name,
                revision=self.revision,
                weights_fingerprint=weights_fingerprint(self.model),
                tokenizer_hash=tokenizer_hash(self.tokenizer),
                hidden_size=self.hidden_size,
                vocab_size=self.vocab_size,
            )
        return self._identity

    @torch.inference_mode()
    def hidden_states(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """What the language model head reads at every position; no logits are computed but the last position's.

        Args:
            input_ids: int64 [B, T].
            attention_mask: int64 [B, T], 1 for tokens, 0 for padding on either side.

        Returns:
            [B, T, hidden_size], in the model's dtype; rows of padding hold nothing of use.
        """
        positions = (attention_mask.cumsum(-1) - 1).clamp_(min=0)
        states, _ = self._run(
            keep=1, input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False
        )
        return states

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """Applies the language model head: [..., hidden_size] -> [..., vocab_size]."""
        logits: Tensor = self._head(states)
        # What some architectures do to the logits after the head.
        if scale := getattr(self.config, "logit_scale", None):
            logits = logits * scale
        if scaling := getattr(self.config, "logits_scaling", None):
            logits = logits / scaling
        if cap := getattr(self.config, "final_logit_softcapping", None):
            logits = torch.tanh(logits / cap) * cap
        return logits

    @torch.inference_mode()
    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        masks: Tensor | dict[str, Tensor] | None,
        cache: Cache,
        keep: int,
    ) -> ForwardOutput:
        """One pass over the next tokens of B sequences.

        Args:
            input_ids: int64 [B, T].
            position_ids: int64 [B, T].
            masks: what `AttentionLayout.tree_input` gives; None for tokens in plain order.
            cache: of the tokens before; grows by T rows.
            keep: logits are computed for the last `keep` tokens only.
        """
        states, logits = self._run(
            keep=keep,
            input_ids=input_ids,
            attention_mask=masks,
            position_ids=position_ids,
            use_cache=True,
            **{self._cache_argument: cache},
        )
        return ForwardOutput(logits=logits, states=states)

    def _run(self, *, keep: int, **inputs: object) -> tuple[Tensor, Tensor]:
        """Runs the model; the head is handed the last `keep` positions only.

        Returns:
            What the head would have read of all positions, and the logits.
        """
        captured: list[Tensor] = []
        this_thread = threading.get_ident()

        def capture(_module: torch.nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            # A hook sees every pass of the module, those of other threads, too.
            if threading.get_ident() != this_thread:
                return None
            captured.append(arguments[0])
            return (arguments[0][:, -keep:], *arguments[1:])

        hook: Callable[..., object] = capture
        handle = self._head.register_forward_pre_hook(hook)
        try:
            output = self.model(**inputs, return_dict=True)
        finally:
            handle.remove()
        if len(captured) != 1:
            raise TargetModelError(
                f"{type(self.model).__name__} cannot be a target model: its forward pass ran the language model head "
                f"{len(captured)} times instead of once. Use another model class for these weights."
            )
        return captured[0], output.logits

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens the tokenizer adds by itself.

        Raises:
            TargetModelError: there is no tokenizer, or the text is no Unicode.
        """
        tokenizer = self._tokenizer_or_raise()
        _check_unicode(text)
        return [int(token) for token in tokenizer(text)["input_ids"]]

    def encode_prompt(self, prompt: str | Sequence[Message], *, chat: bool = False) -> list[int]:
        """Token ids of a prompt.

        Args:
            prompt: a text, or the turns of a chat (which implies `chat`).
            chat: put the text into the model's chat template as the user's turn.

        Raises:
            TargetModelError: a chat is asked of a model without a chat template or of one whose template refuses it,
                there is no tokenizer, or the text is no Unicode.
        """
        if isinstance(prompt, str) and not chat:
            return self.encode_text(prompt)
        tokenizer = self._tokenizer_or_raise()
        if not tokenizer.chat_template:
            raise TargetModelError(
                f"Model {self.name!r} has no chat template. "
                "Leave out the chat option, or use an instruction-tuned model."
            )
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(turn) for turn in prompt]
        _check_unicode(*(str(turn.get("content", "")) for turn in messages))
        try:
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
        except Exception as error:  # a template is a program, and fails in any way a program can
            raise TargetModelError(
                f"The chat template of {self.name!r} fails on this prompt: {reason_of(error)}. "
                "Check the prompt's turns, or leave out the chat option."
            ) from error
        return [int(token) for token in ids["input_ids"]]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special tokens."""
        return str(self._tokenizer_or_raise().decode(list(tokens), skip_special_tokens=True))

    def pack_linear_layers(self) -> None:
        """Makes passes of a few rows cheaper on a CPU (`cpu_linear`, `cpu_attention`), where torch can."""
        if can_pack():
            remember_fingerprint(self.model)  # of the weights that packing drops
            pack_linear_layers(self.model)
            use_cpu_attention(self.model)
            self.is_packed = True
            self._head = self.model.get_output_embeddings()

    def _tokenizer_or_raise(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise TargetModelError(f"Model {self.name!r} has no tokenizer. Pass token ids instead of text.")
        return self.tokenizer


def load_target_model(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    packed_linear: bool = True,
) -> TargetModel:
    """Loads a model and its tokenizer from a folder or the Hugging Face hub.

    Args:
        name_or_path: folder or repository name.
        dtype: "auto" (float32 on a CPU, bfloat16 elsewhere), "float32", "bfloat16", "float16" or a torch dtype.
        device: a GPU if there is one, else the CPU, for None.
        packed_linear: pack the linear layers of a float32 model on a CPU for faster passes (see `cpu_linear`); without
            effect elsewhere, or where torch cannot. A packed model cannot be trained or saved.

    Raises:
        TargetModelError: nothing loadable there, or nothing that can be a target model.
    """
    from transformers import AutoModelForCausalLM

    name = str(name_or_path)
    where = _device(device)
    if dtype == "auto":
        chosen = torch.float32 if where.type == "cpu" else torch.bfloat16
    elif isinstance(dtype, str):
        if dtype not in _DTYPES:
            raise TargetModelError(f"Unknown dtype {dtype!r}. Use auto, {', '.join(_DTYPES)}.")
        chosen = _DTYPES[dtype]
    else:
        chosen = dtype
    cached = _local_only(name)
    try:
        # Safetensors only: other weights would have to be unpickled. And no code that comes with a model is run.
        model, loaded = AutoModelForCausalLM.from_pretrained(
            name,
            dtype=chosen,
            output_loading_info=True,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=cached,
        )
    except Exception as error:  # a configuration may fail at anything that its architecture computes with it
        raise TargetModelError(_load_failure("model", name, error)) from error
    if loaded["missing_keys"]:
        # transformers fills them with random numbers, and only warns.
        missing = sorted(loaded["missing_keys"])
        raise TargetModelError(
            f"The weights of {name!r} are incomplete: {len(missing)} tensors are missing, {missing[0]} among them. "
            "Fetch or save the model again."
        )
    tokenizer = _load_tokenizer(name, cached=cached)
    revision = str(getattr(model.config, "_commit_hash", None) or "")
    try:
        model.to(where)
    except RuntimeError as error:
        raise TargetModelError(
            f"The model {name!r} does not fit on {where} in {chosen}: {reason_of(error)}. "
            "Choose another device, or dtype bfloat16."
        ) from error
    target = TargetModel(model, tokenizer, name=name, revision=revision)
    if packed_linear and where.type == "cpu" and chosen == torch.float32:
        target.pack_linear_layers()
    return target


def _check_unicode(*texts: str) -> None:
    """Refuses lone surrogates, which is what Python makes of bytes that are not UTF-8."""
    for text in texts:
        if not text.isascii() and text.encode(errors="replace").decode() != text:
            raise TargetModelError(f"The text {text[:40]!r} is not valid Unicode. Give it in UTF-8.")


def _device(device: str | torch.device | None) -> torch.device:
    wanted = device if device is not None else ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.empty(0, device=wanted).device
        # On other devices nothing can be computed (meta), or nothing that a decode needs.
        torch.ones(1, device=chosen).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        raise TargetModelError(
            f"Cannot use device {str(wanted)!r}: {reason_of(error)}. Devices here: {', '.join(['cpu', *gpus])}."
        ) from error
    return chosen


def _local_only(name: str) -> bool:
    try:
        return local_only(name)
    except SourceError as error:
        raise TargetModelError(str(error)) from error


def _load_tokenizer(name: str, *, cached: bool) -> PreTrainedTokenizerBase | None:
    from transformers import AutoTokenizer

    if is_folder(name) and not any((Path(name) / file).is_file() for file in _TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False, local_files_only=cached)
    except Exception as error:  # tokenizers raises nothing more special
        raise TargetModelError(_load_failure("tokenizer", name, error)) from error


def find_tokenizer(name: str) -> PreTrainedTokenizerBase | None:
    """The tokenizer saved where a model came from; None if there is none."""
    try:
        return _load_tokenizer(name, cached=_local_only(name)) if name else None
    except TargetModelError:
        return None


def _load_failure(what: str, name: str, error: Exception) -> str:
    return (
        f"Cannot load the {what} {name!r}: {reason_of(error)}. "
        "Name a folder with config.json and safetensors weights, or a decoder-only model of the Hugging Face hub."
    )
