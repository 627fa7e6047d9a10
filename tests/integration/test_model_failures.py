"""A model that cannot be used is one sentence, whatever is wrong with it, and nothing that comes with it is run."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoder_client.cli import main
from decoder_client.errors import DecoderError
from decoder_client.generation import SpeculativeDecoder
from decoder_client.target_model import TargetModel, TargetModelError, load_target_model
from tests.support.models import save_tiny_model, tiny_model, tiny_tokenizer

PROMPT = "abcab"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_model("llama", tmp_path / "model")


def _config(**changes: object) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        path = model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _file(name: str, content: bytes | str) -> Callable[[Path], None]:
    return lambda model: (model / name).write_bytes(content.encode() if isinstance(content, str) else content) and None


class _Marks:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self._path,)


def _pickled(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(_Marks(model / "was run")))


def _garbage_pickle(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"garbage" * 100)


def _custom_code(model: Path) -> None:
    (model / "custom.py").write_text(f"open({str(model / 'was run')!r}, 'w').close()\n")
    _config(model_type="mine", auto_map={"AutoConfig": "custom.C", "AutoModelForCausalLM": "custom.M"})(model)


BROKEN = {
    "config: no JSON": _file("config.json", "{"),
    "config: a list": _file("config.json", "[]"),
    "config: no UTF-8": _file("config.json", b"\xff\xfe{"),
    "config: unknown type": _config(model_type="abacus"),
    "config: no type": _config(model_type=None, architectures=None),
    "config: a text for a number": _config(hidden_size="many"),
    "config: heads do not divide": _config(hidden_size=33, num_attention_heads=4, head_dim=None),
    "config: no heads": _config(num_attention_heads=0, head_dim=None),
    "config: another size than the weights": _config(intermediate_size=11),
    "config: negative size": _config(vocab_size=-1),
    "config: unknown activation": _config(hidden_act="gelp"),
    "config: unknown layers": _config(layer_types=["full_attention"]),
    "config: unknown rope": _config(rope_parameters={"rope_type": "knot"}),
    "config: quantised for other kernels": _config(quantization_config={"quant_method": "gptq", "bits": 4}),
    "weights: none": lambda model: (model / "model.safetensors").unlink(),
    "weights: garbage": _file("model.safetensors", b"garbage" * 100),
    "weights: empty": _file("model.safetensors", b""),
    "weights: a pickle": _pickled,
    "weights: a garbage pickle": _garbage_pickle,
    "code of its own": _custom_code,
    "tokenizer: garbage": _file("tokenizer.json", b"garbage"),
    "tokenizer: an empty record": _file("tokenizer.json", "{}"),
    "tokenizer: of an unknown kind": _file("tokenizer.json", '{"model": {"type": "Abacus"}}'),
    "tokenizer: a list": _file("tokenizer.json", "[]"),
    "tokenizer: torn": lambda model: (
        (model / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes()[:1000]) and None
    ),
    "tokenizer: settings of another kind": _file("tokenizer_config.json", "[1]"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_model_is_one_sentence(model: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    BROKEN[kind](model)
    assert main(["generate", "--model", str(model), "--prompt", PROMPT]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    [error] = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert str(model) in error or "cannot be a target model" in error
    assert "Traceback" not in captured.err
    assert not (model / "was run").exists()


NO_MODEL = [
    "",
    "x" * 300,
    "x" * 5000,
    "a b",
    "a//b",
    "-a/b",
    "a/b/c",
    "/no/such",
    "./no",
    "~/no",
    "é/é",
    "\udcff",
    "/\udcff",
]


@pytest.mark.parametrize("name", NO_MODEL)
def test_what_is_no_models_name_is_refused_without_asking_the_hub(name: str) -> None:
    with pytest.raises(TargetModelError, match=r"no model folder|nor a name of|no config\.json"):
        load_target_model(name)


def test_without_a_network_a_name_that_is_not_cached_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    # A name that no hub has: with a network, the hub itself says so.
    assert main(["generate", "--model", "dresd-tests/no-such-model", "--prompt", PROMPT]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert "dresd-tests/no-such-model" in errors[0]


def test_what_the_hub_warns_about_is_printed_once() -> None:
    program = (
        "import logging; from decoder_client.cli import main; main(['generate', '--model', '/no', '--prompt', '']);"
        "logging.getLogger('huggingface_hub.file_download').warning('it is slow today')"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stderr.count("it is slow today") == 1


def test_without_a_network_a_cached_model_is_loaded(model: Path, tmp_path: Path) -> None:
    cached = tmp_path / "hub" / "models--some--model"
    (cached / "snapshots").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("f" * 40)
    model.rename(cached / "snapshots" / ("f" * 40))
    ran = subprocess.run(
        [sys.executable, "-m", "decoder_client.cli", "generate", "--model", "some/model", "--prompt", PROMPT],
        env={**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip()


def test_a_name_that_is_no_unicode_is_a_folder_like_any_other(model: Path) -> None:
    odd = model.rename(model.with_name("m\udcff"))
    try:
        loaded = load_target_model(odd)
    except TargetModelError as error:
        assert "m\\udcff" in str(error)  # noqa: PT017 - which of the two depends on the version of the loaders
    else:
        assert loaded.hidden_size == 32


@pytest.mark.parametrize("device", ["meta", "abacus", "", "cpu:x", "cuda:99", "vulkan"])
def test_a_device_that_cannot_compute_is_refused_with_those_that_can(model: Path, device: str) -> None:
    with pytest.raises(TargetModelError, match=rf"Cannot use device '{device}'.*Devices here: cpu"):
        load_target_model(model, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_cuda_is_refused(model: Path) -> None:
    with pytest.raises(TargetModelError, match=r"'cuda': [^:]*\. Devices here: cpu\."):
        load_target_model(model, device="cuda")


TEMPLATES = {
    "syntax": "{% for %}",
    "undefined": "{{ messages[0].nothing.at_all }}",
    "raises": "{{ raise_exception('Only users may speak') }}",
    "type": "{{ messages + 1 }}",
    "divides by nothing": "{{ 1 // 0 }}",
    "no such key": "{{ messages[7]['content'] }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_chat_template_that_fails_is_one_sentence(kind: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATES[kind]
    target = TargetModel(tiny_model("llama", vocab_size=len(tokenizer)), tokenizer, name="tiny")
    with pytest.raises(TargetModelError, match="chat template of 'tiny' fails") as failed:
        target.encode_prompt("hello", chat=True)
    if kind == "raises":
        assert "Only users may speak" in str(failed.value)


@pytest.mark.parametrize("chat", [False, True])
def test_a_text_that_is_no_unicode_is_refused(chat: bool) -> None:
    tokenizer = tiny_tokenizer()
    target = TargetModel(tiny_model("llama", vocab_size=len(tokenizer)), tokenizer)
    with pytest.raises(TargetModelError, match="not valid Unicode"):
        target.encode_prompt("caf\udce9", chat=chat)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("options", [{"nodes": 0, "context": False}, {"nodes": 8}], ids=["plain", "drafted"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_that_are_no_numbers_are_one_sentence(
    model: Path, value: float, options: dict[str, int], temperature: float
) -> None:
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][0] = value
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DecoderError, match=r"NaN.*damaged"):
        SpeculativeDecoder.from_pretrained(model, **options).generate(PROMPT, temperature=temperature, seed=0)
