"""Loads the target model for building: without noise, and with this process's share of the cores."""

from __future__ import annotations

from contextlib import suppress

import torch

from decoder_client.model_source import local_only
from decoder_client.target_model import TargetModel, find_tokenizer, load_target_model


def load_for_reading(model: str) -> TargetModel:
    """The target as its identity needs it: on the CPU, in half the memory.

    Raises:
        TargetModelError: there is no such model, or it cannot be a target.
    """
    _silence()
    return load_target_model(model, dtype="bfloat16", device="cpu")


def load_for_encoding(model: str) -> TargetModel:
    """The target without its weights, for its tokenizer: of a model that `load_for_reading` has loaded once."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    _silence()
    where = {"trust_remote_code": False, "local_files_only": local_only(model)}
    config = AutoConfig.from_pretrained(model, **where)
    with torch.device("meta"):
        weightless = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    with suppress(OSError):  # most models have one
        weightless.generation_config = GenerationConfig.from_pretrained(
            model, local_files_only=where["local_files_only"]
        )
    return TargetModel(weightless, find_tokenizer(model), name=model)


def load_for_computing(model: str, threads: int) -> TargetModel:
    """The target in a worker process, on a GPU if the worker was given one.

    Raises:
        TargetModelError: as above.
    """
    _silence()
    torch.set_num_threads(threads)
    return load_target_model(model)


def _silence() -> None:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
