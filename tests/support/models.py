"""Tiny randomly initialised models of several architectures, with a byte tokenizer, saved as real ones are.

Greedy decoding with them gives varied tokens (their weights are larger than a fresh model's), so that equality of
outputs means something.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

ARCHITECTURES = ("gpt2", "llama", "qwen3", "gemma3")
"""gemma3 has a sliding window and token ids beyond 65,535 (its bytes start at `LARGE_VOCABULARY_OFFSET`)."""

END_OF_TEXT, TURN_BEGIN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
LARGE_VOCABULARY_OFFSET = 66_000
SLIDING_WINDOW = 16

# ChatML; a turn ends with a token, then a newline, as in most published templates.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer(*, first_id: int = 0, chat: bool = True) -> PreTrainedTokenizerFast:
    """One token a byte, from id `first_id` on, and three special tokens after them (`TURN_END` ends an answer)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {f"<unused{i}>": i for i in range(first_id)} | {byte: first_id + i for i, byte in enumerate(alphabet)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (END_OF_TEXT, TURN_BEGIN, TURN_END)])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=TURN_BEGIN,
        eos_token=TURN_END if chat else END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )
    if chat:
        wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def tiny_model(
    architecture: str,
    *,
    vocab_size: int,
    hidden_size: int = 32,
    head_dim: int = 8,
    max_length: int = 256,
    eos_token_id: int | None = None,
) -> PreTrainedModel:
    """Two layers in evaluation mode, float32, from torch's current random state."""
    common = {"vocab_size": vocab_size, "bos_token_id": None, "eos_token_id": eos_token_id, "initializer_range": 0.3}
    llama_like = common | {
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "max_position_embeddings": max_length,
        "pad_token_id": None,
    }
    model: PreTrainedModel
    if architecture == "gpt2":
        gpt2 = {"n_embd": hidden_size, "n_layer": 2, "n_head": 4, "n_positions": max_length}
        model = GPT2LMHeadModel(GPT2Config(**common, **gpt2))
    elif architecture == "llama":
        model = LlamaForCausalLM(LlamaConfig(**llama_like))
    elif architecture == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**llama_like))
    elif architecture == "gemma3":
        layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": SLIDING_WINDOW}
        # Tied to Gemma's scaled embeddings, random weights would repeat one token for ever.
        model = Gemma3ForCausalLM(Gemma3TextConfig(**llama_like, **layers, tie_word_embeddings=False))
    else:
        raise ValueError(f"no tiny model of architecture {architecture!r}; there are {', '.join(ARCHITECTURES)}")
    return model.eval()


def save_tiny_model(
    architecture: str,
    directory: Path,
    *,
    seed: int = 0,
    hidden_size: int = 32,
    head_dim: int = 8,
    max_length: int = 256,
    chat: bool = True,
) -> Path:
    """A folder that transformers loads by path; the same arguments give the same weights."""
    tokenizer = tiny_tokenizer(first_id=LARGE_VOCABULARY_OFFSET if architecture == "gemma3" else 0, chat=chat)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Published models pad their vocabulary: the head has a few rows more than the tokenizer has tokens.
        model = tiny_model(
            architecture,
            vocab_size=len(tokenizer) + 5,
            hidden_size=hidden_size,
            head_dim=head_dim,
            max_length=max_length,
            eos_token_id=tokenizer.eos_token_id,
        )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
