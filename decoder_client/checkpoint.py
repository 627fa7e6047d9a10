"""Who a model on disk is, without loading it: for engines that keep its weights in a form of their own.

Knows files of weights and transformers' configurations.
"""

from __future__ import annotations

from pathlib import Path

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from decoder_client.fingerprint import fingerprint_of, tokenizer_hash
from decoder_client.model_source import is_folder
from decoder_client.target_model import find_tokenizer
from dresd.identity import ModelIdentity

UNKNOWN = ""
"""The fingerprint of weights that cannot be compared."""


def identity_of_checkpoint(
    name: str, *, tokenizer: str, revision: str, hidden_size: int, vocab_size: int
) -> ModelIdentity:
    """What a datastore records of a model.

    Args:
        name: folder or hub name of the model; what is in the hub's local cache is looked at, nothing is fetched.
        tokenizer: folder or hub name of the tokenizer.
        revision: of the hub's; "" for the main one.
        hidden_size: of the state that the language model head reads.
        vocab_size: rows of the language model head.

    Returns:
        Its identity; the fingerprint is `UNKNOWN` where the files do not hold the very parameters that transformers
        gives the model, as quantised or sharded ones do not.
    """
    folder = _folder(name, revision)
    return ModelIdentity(
        name=name,
        revision=revision,
        weights_fingerprint=UNKNOWN if folder is None else checkpoint_fingerprint(folder),
        tokenizer_hash=tokenizer_hash(find_tokenizer(tokenizer)),
        hidden_size=hidden_size,
        vocab_size=vocab_size,
    )


def checkpoint_fingerprint(folder: Path) -> str:
    """The fingerprint that the model in `folder` would have once loaded, or `UNKNOWN`; reads little of its files."""
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
        expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        found: dict[str, torch.Tensor] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as weights:
                for name in expected.keys() & set(weights.keys()):
                    found[name] = weights.get_tensor(name)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError):
        return UNKNOWN
    if {name: tuple(tensor.shape) for name, tensor in found.items()} != expected:
        return UNKNOWN
    if not all(tensor.is_floating_point() for tensor in found.values()):
        return UNKNOWN
    return fingerprint_of(found.items())


def _folder(name: str, revision: str) -> Path | None:
    if is_folder(name):
        return Path(name)
    try:
        path = try_to_load_from_cache(name, "config.json", revision=revision or None)
    except HFValidationError:
        return None
    return Path(path).parent if isinstance(path, str) else None
