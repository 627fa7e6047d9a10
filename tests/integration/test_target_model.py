"""The target model shows the states its head reads, says who it is, and refuses what cannot verify drafts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from decoder_client.cache import TreeCache
from decoder_client.cpu_linear import can_pack
from decoder_client.drafting import any_drafter
from decoder_client.engines.transformers_generate import DraftedGenerate, dresd_generate
from decoder_client.generation import SpeculativeDecoder
from decoder_client.target_model import ForwardOutput, TargetModel, TargetModelError, load_target_model
from decoder_client.tree_check import check_tree_attention
from dresd.identity import differences
from tests.support.drafts import FixedDrafter
from tests.support.models import ARCHITECTURES, save_tiny_model, tiny_model

VOCAB = 48
LOCAL = [[["global", "local"], 1]]
IDS = torch.tensor([[5, 3, 8, 1, 9, 2, 7], [4, 4, 6, 0, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]])


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_states_are_what_the_head_reads(architecture: str) -> None:
    torch.manual_seed(0)
    model = tiny_model(architecture, vocab_size=VOCAB)
    target = TargetModel(model)
    states = target.hidden_states(IDS, MASK)
    assert states.shape == (*IDS.shape, target.hidden_size)
    with torch.inference_mode():
        expected = model(input_ids=IDS, attention_mask=MASK).logits
    torch.testing.assert_close(target.logits(states)[MASK.bool()], expected[MASK.bool()])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padding_on_either_side_changes_no_state(architecture: str) -> None:
    torch.manual_seed(0)
    target = TargetModel(tiny_model(architecture, vocab_size=VOCAB))
    alone = target.hidden_states(IDS[1:, :3], MASK[1:, :3])[0]
    right = target.hidden_states(IDS, MASK)[1, :3]
    left = target.hidden_states(IDS.roll(4, dims=1), MASK.roll(4, dims=1))[1, 4:]
    torch.testing.assert_close(right, alone, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(left, alone, atol=1e-5, rtol=1e-4)


def test_logits_go_through_what_follows_the_head() -> None:
    torch.manual_seed(0)
    model = tiny_model("gemma3", vocab_size=VOCAB)
    model.config.final_logit_softcapping = 2.0
    target = TargetModel(model)
    with torch.inference_mode():
        expected = model(input_ids=IDS).logits
    torch.testing.assert_close(target.logits(target.hidden_states(IDS, torch.ones_like(IDS))), expected)
    assert expected.abs().max() < 2.0


@pytest.mark.parametrize("keep", [1, 3, 7])
def test_a_pass_gives_logits_for_the_last_rows_only(keep: int) -> None:
    torch.manual_seed(0)
    model = tiny_model("qwen3", vocab_size=VOCAB)
    target = TargetModel(model)
    ids = torch.stack([IDS[0], IDS[0].flip(0)])
    computed: list[int] = []
    handle = model.lm_head.register_forward_hook(lambda _m, _i, output: computed.append(output.shape[1]))
    output = target.forward(ids, torch.arange(7).expand(2, 7), None, TreeCache(), keep=keep)
    handle.remove()
    assert computed == [keep]
    assert output.logits.shape == (2, keep, VOCAB)
    states = target.hidden_states(ids, torch.ones_like(ids))
    torch.testing.assert_close(output.states, states)
    torch.testing.assert_close(output.logits, target.logits(states[:, -keep:]))


def test_a_model_is_left_as_it_was(folder: Path) -> None:
    target = load_target_model(folder)
    hooks = dict(target.model.get_output_embeddings()._forward_pre_hooks)
    target.hidden_states(IDS, MASK)
    assert dict(target.model.get_output_embeddings()._forward_pre_hooks) == hooks


def test_copies_of_other_precision_are_the_same_model(folder: Path) -> None:
    one, other = load_target_model(folder, dtype="float32"), load_target_model(folder, dtype="bfloat16")
    assert one.dtype != other.dtype
    assert differences(one.identity(), other.identity()) == []
    assert one.identity().hidden_size == 32
    assert one.identity().vocab_size == one.vocab_size


def compared(one: TargetModel, other: TargetModel) -> list[str]:
    return [line.split(":")[0] for line in differences(one.identity(), other.identity())]


def test_other_weights_are_another_model(folder: Path) -> None:
    target, changed = load_target_model(folder), load_target_model(folder, packed_linear=False)
    with torch.no_grad():
        next(iter(changed.model.parameters())).mul_(1.5)
    assert compared(target, changed) == ["weights_fingerprint"]


def test_another_tokenizer_makes_another_model(folder: Path) -> None:
    target = load_target_model(folder)
    retokenized = TargetModel(target.model, load_target_model(folder).tokenizer)
    assert retokenized.tokenizer is not None
    retokenized.tokenizer.add_tokens(["<new>"])
    assert compared(target, retokenized) == ["tokenizer_hash"]


def test_packing_changes_neither_states_nor_identity(folder: Path) -> None:
    plain, packed = load_target_model(folder, packed_linear=False), load_target_model(folder, packed_linear=True)
    assert differences(plain.identity(), packed.identity()) == []
    states = plain.hidden_states(IDS, MASK)
    torch.testing.assert_close(packed.hidden_states(IDS, MASK)[MASK.bool()], states[MASK.bool()], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(packed.logits(states), plain.logits(states), atol=1e-4, rtol=1e-4)
    plain_modules, packed_modules = ([type(m) for m in t.model.modules()] for t in (plain, packed))
    assert (plain_modules != packed_modules) == can_pack()


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_packed_head_may_be_tied_to_the_embedding(architecture: str) -> None:
    torch.manual_seed(0)
    model = tiny_model(architecture, vocab_size=VOCAB)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    target = TargetModel(model)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    states, identity = target.hidden_states(IDS, MASK), target.identity()
    logits = target.logits(states)
    target.pack_linear_layers()
    torch.testing.assert_close(target.hidden_states(IDS, MASK), states, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(target.logits(states), logits, atol=1e-4, rtol=1e-4)
    assert target.identity() == identity


def test_prompts_are_encoded_as_the_tokenizer_and_template_say(folder: Path) -> None:
    target = load_target_model(folder)
    assert target.decode(target.encode_prompt("héllo\n")) == "héllo\n"
    chat = target.encode_prompt("hi", chat=True)
    assert chat == target.encode_prompt([{"role": "user", "content": "hi"}])
    assert target.tokenizer is not None
    assert target.tokenizer.decode(chat) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert target.eos_token_ids == {target.tokenizer.eos_token_id}


def test_a_chat_needs_a_template(tmp_path: Path) -> None:
    target = load_target_model(save_tiny_model("llama", tmp_path / "m", chat=False))
    with pytest.raises(TargetModelError, match="no chat template"):
        target.encode_prompt("hi", chat=True)


def test_a_model_without_a_tokenizer_loads(tmp_path: Path) -> None:
    model = tiny_model("llama", vocab_size=VOCAB)
    model.save_pretrained(tmp_path / "m")
    target = load_target_model(tmp_path / "m")
    assert target.tokenizer is None
    assert target.identity().tokenizer_hash == ""
    with pytest.raises(TargetModelError, match="no tokenizer"):
        target.encode_prompt("hi")


def test_the_length_is_the_configurations() -> None:
    assert TargetModel(tiny_model("gpt2", vocab_size=VOCAB, max_length=99)).max_length == 99


def test_a_longrope_model_is_as_long_as_its_first_rotation_holds() -> None:
    target = TargetModel(tiny_model("llama", vocab_size=VOCAB, max_length=99))
    target.config.rope_parameters = {"rope_type": "longrope", "original_max_position_embeddings": 40}
    assert target.max_length == 40


def small(size: int = 16) -> dict[str, int]:
    return {"vocab_size": VOCAB, "hidden_size": size, "num_hidden_layers": 2, "num_layers": 2, "d_model": size}


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: T5ForConditionalGeneration(T5Config(**small(), d_kv=4, d_ff=8, num_heads=2)), "encoder-decoder"),
        (lambda: MambaForCausalLM(MambaConfig(**small(), state_size=4)), "not attention"),
        (lambda: BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=1, n_head=2)), "position_ids"),
        (lambda: GPTNeoForCausalLM(GPTNeoConfig(**small(), num_heads=2, attention_types=LOCAL)), "counts rows"),
    ],
)
def test_architectures_that_cannot_verify_drafts_are_refused(model: object, reason: str) -> None:
    assert callable(model)
    with pytest.raises(TargetModelError, match=f"cannot be a target model: .*{reason}"):
        TargetModel(model())


class RowMasked(LlamaForCausalLM):
    """Masks by the order of rows, whatever mask it is given."""

    def forward(self, **inputs: object) -> object:
        return super().forward(**inputs | {"attention_mask": None})

    forward.__signature__ = inspect.signature(LlamaForCausalLM.forward)


@pytest.fixture
def row_masked() -> TargetModel:
    torch.manual_seed(0)
    return TargetModel(RowMasked(tiny_model("llama", vocab_size=VOCAB).config))


def generate(target: TargetModel, ids: torch.Tensor, custom: DraftedGenerate | None) -> torch.Tensor:
    output = target.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, pad_token_id=0, custom_generate=custom
    )
    assert isinstance(output, torch.Tensor)
    return output


DRAFTED: dict[str, Callable[[TargetModel], object]] = {
    "check": check_tree_attention,
    "decoder": lambda target: SpeculativeDecoder(target, any_drafter(FixedDrafter())),
    "from_pretrained": SpeculativeDecoder.from_pretrained,
    "generate": lambda target: generate(target, IDS[:1], dresd_generate()),
    # Prompts of a batch are told apart by masks, whether anything is drafted or not.
    "batch": lambda target: SpeculativeDecoder(target).generate_batch([[1], [2, 3]]),
    "batch, no nodes": lambda target: SpeculativeDecoder.from_pretrained(target, nodes=0).generate_batch([[1], [2]]),
    "batch of generate": lambda target: generate(target, IDS, dresd_generate(nodes=0)),
}


@pytest.mark.parametrize("use", DRAFTED)
def test_a_model_that_masks_by_row_is_found_out(row_masked: TargetModel, use: str) -> None:
    for _ in range(2):
        with pytest.raises(TargetModelError, match=r"RowMasked cannot verify drafts.*one prompt at a time without"):
            DRAFTED[use](row_masked)


def test_a_model_that_masks_by_row_decodes_plainly(row_masked: TargetModel) -> None:
    expected = generate(row_masked, IDS[:1], None)
    assert torch.equal(generate(row_masked, IDS[:1], dresd_generate(nodes=0)), expected)
    for decoder in (SpeculativeDecoder(row_masked), SpeculativeDecoder.from_pretrained(row_masked, nodes=0)):
        tokens = decoder.generate(IDS[0].tolist(), max_new_tokens=8).tokens
        assert list(tokens) == expected[0, IDS.shape[1] :].tolist()


def test_a_model_is_checked_once_for_each_kind_of_attention() -> None:
    class Counting(TargetModel):
        passes = 0

        def forward(self, *arguments: object, **options: object) -> ForwardOutput:
            self.passes += 1
            return super().forward(*arguments, **options)

    torch.manual_seed(0)
    target = Counting(tiny_model("llama", vocab_size=VOCAB))
    seen = []
    for implementation in ("sdpa", "sdpa", "eager", "eager"):
        target.model.set_attn_implementation(implementation)
        check_tree_attention(target)
        seen.append(target.passes)
    assert 0 < seen[0] == seen[1] < seen[2] == seen[3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_models_that_attend_along_trees_pass_the_check(architecture: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model: PreTrainedModel = tiny_model(architecture, vocab_size=VOCAB).to(dtype)
    check_tree_attention(TargetModel(model))


def test_attention_without_masks_is_refused() -> None:
    model = tiny_model("llama", vocab_size=VOCAB)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(TargetModelError, match=r"flash_attention_2.*sdpa"):
        TargetModel(model)


@pytest.mark.parametrize(
    ("name", "message"),
    [("/no/such/folder", "no model folder"), ("./missing", "no model folder"), ("{tmp}", "no config.json")],
)
def test_a_folder_that_holds_no_model_is_named(name: str, message: str, tmp_path: Path) -> None:
    name = name.format(tmp=tmp_path)
    with pytest.raises(TargetModelError, match=message) as raised:
        load_target_model(name)
    assert name in str(raised.value)


def test_broken_weights_are_one_sentence(tmp_path: Path) -> None:
    folder = save_tiny_model("llama", tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(TargetModelError, match="Cannot load the model"):
        load_target_model(folder)


def test_an_unknown_device_or_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(TargetModelError, match="device 'abacus'"):
        load_target_model(folder, device="abacus")
    with pytest.raises(TargetModelError, match="dtype 'int3'"):
        load_target_model(folder, dtype="int3")


def test_weights_that_lack_a_tensor_are_refused(tmp_path: Path) -> None:
    folder = save_tiny_model("llama", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TargetModelError, match=f"1 tensors are missing, {name}"):
        load_target_model(folder)
