"""Loads the target model for building: without noise, and with this process's share of the cores."""

from __future__ import annotations

import torch

from decoder_client.target_model import TargetModel, load_target_model


def load_for_reading(model: str) -> TargetModel:
    """The target as the driver needs it, for its tokenizer and its identity: on the CPU, in half the memory.

    Raises:
        TargetModelError: there is no such model, or it cannot be a target.
    """
    _silence()
    return load_target_model(model, dtype="bfloat16", device="cpu")


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
