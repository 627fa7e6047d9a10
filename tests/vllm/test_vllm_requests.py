"""Whatever kinds of requests come together, and however the engine reads them, drafts change nothing of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams

from tests.support.evaluation import TinyWorld
from tests.support.serving import ServerProcess
from tests.support.vllm_engine import MAX_LENGTH, Engine, Outputs, engine, some_prompts

GREEDY = SamplingParams(temperature=0.0, max_tokens=40)


@pytest.fixture(scope="module")
def address(world: TinyWorld) -> Iterator[str]:
    with ServerProcess(world.datastore) as process:
        yield process.ready()


def both(world: TinyWorld, address: str, ask: object, **options: object) -> tuple[Outputs, Outputs]:
    """What `ask` gets of an engine without drafts and of one with."""
    with engine(world.model, drafts=False, **options) as one:
        plain = ask(one)
    with engine(world.model, drafts=True, settings={"retriever": address, "adaptive": False}, **options) as one:
        drafted = ask(one)
        assert one.proposer.totals.accepted > 0
        assert one.proposer.retriever.stats.answered > 0
    return plain, drafted


# Long prompts read in parts, beside requests that decode; and again, when they are in the prefix cache.
def _long_prompts_twice(one: Engine) -> Outputs:
    prompts = some_prompts(6, length=70)
    return one.generate(prompts, GREEDY) + one.generate(prompts[::-1], GREEDY)


def _mixed(one: Engine) -> Outputs:
    """Greedy ones among sampled ones, of which only the greedy ones have a text that is known."""
    prompts = some_prompts(12)
    sampled = SamplingParams(temperature=1.0, max_tokens=40)
    return one.generate(prompts, [GREEDY if place % 2 else sampled for place in range(12)])[1::2]


def _several_answers(one: Engine) -> Outputs:
    """As cold as sampling can be without being greedy, so that all answers are the likeliest one."""
    return one.generate(some_prompts(4), SamplingParams(temperature=1e-4, max_tokens=20, n=3))


def _to_the_models_length(one: Engine) -> Outputs:
    prompts = [*some_prompts(4), *some_prompts(4, length=100)]
    return one.generate(prompts, SamplingParams(temperature=0.0, max_tokens=MAX_LENGTH, ignore_eos=True))


def _structured(one: Engine) -> Outputs:
    by_regex = SamplingParams(
        temperature=0.0, max_tokens=30, structured_outputs=StructuredOutputsParams(regex="([a-f]{3}-){4}end")
    )
    return one.generate(some_prompts(6), [by_regex, GREEDY] * 3)


def _penalties(one: Engine) -> Outputs:
    return one.generate(
        some_prompts(4), SamplingParams(temperature=0.0, max_tokens=40, repetition_penalty=1.3, presence_penalty=0.5)
    )


def _aborted(one: Engine) -> Outputs:
    def between(step: int) -> None:
        if step == 2:
            one.llm.llm_engine.abort_request(["request-1"])

    return one.generate(some_prompts(4), GREEDY, between=between)


@pytest.mark.parametrize(
    ("ask", "options"),
    [
        (_long_prompts_twice, {"max_num_batched_tokens": 640, "enable_prefix_caching": True}),
        (_long_prompts_twice, {"max_num_batched_tokens": 640, "enable_prefix_caching": False}),
        (_mixed, {}),
        (_several_answers, {}),
        (_to_the_models_length, {}),
        (_structured, {}),
        (_penalties, {}),
        (_aborted, {}),
    ],
)  # fmt: skip
def test_answers_are_those_of_an_engine_without_drafts(
    world: TinyWorld, address: str, ask: object, options: dict[str, object]
) -> None:
    plain, drafted = both(world, address, ask, **options)
    assert drafted == plain


def test_requests_that_lose_their_cache_go_on(world: TinyWorld, address: str) -> None:
    """The cache holds a few requests only, so others are put off in the middle of their answers and read again."""

    def ask(one: Engine) -> Outputs:
        return one.generate(some_prompts(12), SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True))

    plain, drafted = both(world, address, ask, num_gpu_blocks_override=8, block_size=32)
    assert drafted == plain


def _adapter(folder: Path) -> Path:
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    random = torch.Generator().manual_seed(3)
    tensors = {}
    for layer in range(2):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(4, 64, generator=random)
        tensors[f"{name}.lora_B.weight"] = torch.randn(128, 4, generator=random)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_an_adapter_that_the_datastore_does_not_know_is_drafted_for_without_it(
    world: TinyWorld, address: str, tmp_path: Path
) -> None:
    adapter = LoRARequest("poems", 1, str(_adapter(tmp_path / "poems")))
    options = {"enable_lora": True, "max_lora_rank": 8}

    def with_adapter(one: Engine) -> Outputs:
        return one.generate(some_prompts(4), GREEDY, lora_request=adapter)

    with engine(world.model, drafts=False, **options) as one:
        plain, base = with_adapter(one), one.generate(some_prompts(4), GREEDY)
    assert plain != base
    with engine(world.model, drafts=True, settings={"retriever": address, "adaptive": False}, **options) as one:
        assert with_adapter(one) == plain
        assert one.proposer.retriever.stats.calls == 0
        assert one.generate(some_prompts(4), GREEDY) == base
        assert one.proposer.retriever.stats.answered > 0


def test_nothing_is_kept_of_requests_that_ended(world: TinyWorld) -> None:
    with engine(world.model, drafts=True, settings={"adaptive": False}) as one:
        one.generate(some_prompts(20), GREEDY)
        one.generate(some_prompts(1), SamplingParams(temperature=0.0, max_tokens=4))
        assert one.proposer.num_sessions <= 1
