"""A model on disk is known by the same identity as when it is loaded, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoder_client.checkpoint import UNKNOWN, checkpoint_fingerprint, identity_of_checkpoint
from decoder_client.target_model import load_target_model
from tests.support.models import ARCHITECTURES, save_tiny_model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_identity_as_when_it_is_loaded(architecture: str, tmp_path: Path) -> None:
    folder = save_tiny_model(architecture, tmp_path / "model")
    loaded = load_target_model(folder).identity()
    on_disk = identity_of_checkpoint(
        str(folder),
        tokenizer=str(folder),
        revision="",
        hidden_size=loaded.hidden_size,
        vocab_size=loaded.vocab_size,
    )
    assert on_disk == loaded


def _without_a_layer(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if "layers.0.mlp" not in name}


def _of_whole_numbers(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(torch.int8) for name, tensor in tensors.items()}


def _of_other_shapes(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.reshape(-1) for name, tensor in tensors.items()}


@pytest.mark.parametrize("change", [_without_a_layer, _of_whole_numbers, _of_other_shapes])
def test_weights_in_another_form_are_unknown(
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    folder = save_tiny_model("llama", tmp_path / "model")
    file = folder / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(file)).items()}, file)
    assert checkpoint_fingerprint(folder) == UNKNOWN


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"no weights")])
def test_files_that_cannot_be_read_are_unknown(damage: Callable[[Path], object], tmp_path: Path) -> None:
    folder = save_tiny_model("llama", tmp_path / "model")
    damage(folder / "model.safetensors")
    assert checkpoint_fingerprint(folder) == UNKNOWN


def test_a_folder_without_a_model_is_unknown(tmp_path: Path) -> None:
    assert checkpoint_fingerprint(tmp_path) == UNKNOWN


@pytest.mark.parametrize("name", ["no-such/model", "/no/such/folder", ""])
def test_a_model_that_is_not_here_is_unknown(name: str) -> None:
    identity = identity_of_checkpoint(name, tokenizer="/no/such/folder", revision="", hidden_size=4, vocab_size=8)
    assert (identity.weights_fingerprint, identity.tokenizer_hash) == (UNKNOWN, "")
