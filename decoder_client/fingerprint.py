"""Who a target model is: digests of its weights and of its vocabulary, which a datastore records.

They answer "would this model have computed the same keys?", not "is it the very same file": copies of the same
weights in float32 and bfloat16 get the same fingerprint. A float16 copy of float32 weights does not: it has lost what
would tell how they round to bfloat16, so no rule could.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SAMPLES_PER_PARAMETER = 256

_remembered: WeakKeyDictionary[PreTrainedModel, str] = WeakKeyDictionary()


def weights_fingerprint(model: PreTrainedModel) -> str:
    """sha256, hex, over names, shapes and evenly spaced elements of all parameters, rounded to bfloat16.

    Tied parameters count once. A float32 checkpoint made from a bfloat16 one, or the other way round, has the same
    fingerprint, because every sampled element is rounded before it is hashed.
    """
    if model in _remembered:
        return _remembered[model]
    return fingerprint_of(model.named_parameters())


@torch.inference_mode()
def fingerprint_of(parameters: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The fingerprint of a model with these parameters, in any order; see `weights_fingerprint`."""
    digest = hashlib.sha256()
    samples = []
    for name, parameter in sorted(parameters, key=itemgetter(0)):
        digest.update(f"{name}{tuple(parameter.shape)};".encode())
        flat = parameter.detach().reshape(-1)
        count = min(SAMPLES_PER_PARAMETER, flat.numel())
        at = torch.linspace(0, max(flat.numel() - 1, 0), count, dtype=torch.float64).round().to(torch.int64)
        samples.append(flat[at.to(flat.device)].to(torch.bfloat16))
    # Joined on each device first: one transfer a device instead of one a parameter.
    for device in sorted({str(sample.device) for sample in samples}):
        joined = torch.cat([sample for sample in samples if str(sample.device) == device])
        digest.update(joined.view(torch.int16).cpu().numpy().astype("<i2").tobytes())
    return digest.hexdigest()


def remember_fingerprint(model: PreTrainedModel) -> None:
    """Fixes the fingerprint of a model whose weights are about to be packed away, for whoever wraps it later."""
    _remembered[model] = weights_fingerprint(model)


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase | None) -> str:
    """sha256, hex, over the vocabulary (added tokens included) and the special tokens; "" without a tokenizer."""
    if tokenizer is None:
        return ""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    special = sorted((name, str(token)) for name, token in tokenizer.special_tokens_map.items())
    return hashlib.sha256(json.dumps([vocabulary, special]).encode()).hexdigest()
