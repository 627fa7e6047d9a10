"""Build, serve and decode with the real SmolLM2-135M-Instruct, through the commands a user would type."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from decoder_client.cache_folder import cache_folder
from decoder_client.connecting import connect
from decoder_client.drafting import CostCurve
from decoder_client.evaluation.baselines.suffix_extension import extension_folder
from decoder_client.evaluation.bench import find_difference
from decoder_client.evaluation.logit_gap import logit_gap
from decoder_client.evaluation.methods import METHODS, Method, max_nodes, methods, new_drafter
from decoder_client.evaluation.resources import Resources
from decoder_client.generation import SpeculativeDecoder
from decoder_client.loop import DraftLimits
from decoder_client.retriever import RetrieverClient, RetrieverConfig
from decoder_client.target_model import TargetModel, load_target_model
from tests.support.serving import PATIENCE_S, ServerProcess

pytestmark = pytest.mark.smollm2

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "stdlib"
FAMILY = "exception"
ANSWERS = "answers.jsonl"
TRAIN_PROMPTS, TEST_PROMPTS, NEW_TOKENS = 8, 2, 40


def family_prompts(file: str, count: int) -> list[str]:
    records = [json.loads(line) for line in (EXAMPLES / file).read_text(encoding="utf-8").splitlines()]
    return [record["prompt"] for record in records if record["family"] == FAMILY][:count]


@pytest.fixture(scope="module")
def datastore(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a path with spaces")
    corpus = folder / "prompts.jsonl"
    prompts = family_prompts("train.jsonl", TRAIN_PROMPTS)
    corpus.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    out = folder / "datastore"
    command = [sys.executable, "-m", "retriever_service.cli", "build", "--model", str(smollm2), "--corpus", str(corpus)]
    command += ["--respond", "--max-new-tokens", str(NEW_TOKENS), "--out", str(out), "--partitions", "2", "--json"]
    command += ["--answers-out", str(folder / ANSWERS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["documents"] == TRAIN_PROMPTS
    assert TRAIN_PROMPTS < summary["entries"] <= TRAIN_PROMPTS * (NEW_TOKENS + 1)
    return out


@pytest.fixture(scope="module")
def target(smollm2: Path) -> TargetModel:
    return load_target_model(smollm2)


@pytest.fixture(scope="module")
def plain(target: TargetModel) -> dict[str, tuple[int, ...]]:
    """Prompt -> transformers' own greedy answer."""
    answers = {}
    for prompt in family_prompts("test.jsonl", TEST_PROMPTS):
        ids = torch.tensor([target.encode_prompt(prompt, chat=True)])
        output = target.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
        )
        answers[prompt] = tuple(output[0, ids.shape[1] :].tolist())
    return answers


@pytest.fixture(scope="module")
def address(datastore: Path) -> Iterator[str]:
    """Of a server."""
    with ServerProcess(datastore) as process:
        yield process.ready()


def assert_same_answer(target: TargetModel, prompt: str, plain: tuple[int, ...], tokens: tuple[int, ...]) -> None:
    ids = target.encode_prompt(prompt, chat=True)
    difference = find_difference(ids, plain, tokens, lambda text: logit_gap(target, text))
    assert difference is None or difference.is_near_tie, f"differs at {difference}"


def test_decoding_through_the_service_gives_the_models_own_answer_in_fewer_passes(
    smollm2: Path, address: str, target: TargetModel, plain: dict[str, tuple[int, ...]]
) -> None:
    with SpeculativeDecoder.from_pretrained(smollm2, retriever=address) as decoder:
        for prompt, answer in plain.items():
            out = decoder.generate(prompt, chat=True, max_new_tokens=NEW_TOKENS)
            assert_same_answer(target, prompt, answer, out.tokens)
            assert out.stats.retrievals_answered > 0
            assert out.stats.coverage > 0.5
            assert out.stats.tokens_per_forward > 1.2


def resources(target: TargetModel, datastore: Path, client: RetrieverClient) -> Resources:
    return Resources(
        target.identity(),
        datastore=datastore,
        corpus=[datastore.parent / ANSWERS],
        retriever=client,
        cache=cache_folder(),
        measure=lambda: CostCurve((1, 65), (1.0, 1.2)),
    )


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("nodes", [1, 64])
def test_no_drafter_or_budget_changes_the_answer(
    datastore: Path,
    address: str,
    target: TargetModel,
    plain: dict[str, tuple[int, ...]],
    method: str,
    nodes: int,
) -> None:
    if method.startswith("suffix-decoding") and not extension_folder(cache_folder()).exists():
        pytest.skip("run scripts/build_suffix_decoding.py for this one")
    (chosen,) = methods([method], [nodes])
    assert_answered_as_ever(datastore, address, target, plain, chosen, deadline_ms=1000.0)


@pytest.mark.parametrize("method", ["dense", "dresd"])
def test_no_deadline_changes_the_answer(
    datastore: Path, address: str, target: TargetModel, plain: dict[str, tuple[int, ...]], method: str
) -> None:
    assert_answered_as_ever(datastore, address, target, plain, Method(method, 64), deadline_ms=0.2)


def assert_answered_as_ever(
    datastore: Path,
    address: str,
    target: TargetModel,
    plain: dict[str, tuple[int, ...]],
    method: Method,
    *,
    deadline_ms: float,
) -> None:
    prompt, answer = next(iter(plain.items()))
    with RetrieverClient(RetrieverConfig(address, deadline_ms=deadline_ms)) as client:
        client.connect(target.identity())
        shared = resources(target, datastore, client)
        limits = DraftLimits(nodes=max_nodes(method))
        decoder = SpeculativeDecoder(target, new_drafter(method, shared).drafter, limits=limits)
        out = decoder.generate(prompt, chat=True, max_new_tokens=NEW_TOKENS)
    assert_same_answer(target, prompt, answer, out.tokens)
    assert out.stats.drafted <= max_nodes(method) * out.stats.steps
    assert shared.notes == []  # the answers are those of the datastore


def test_a_service_killed_and_restarted_while_decoding_changes_nothing_but_speed(
    datastore: Path, target: TargetModel, plain: dict[str, tuple[int, ...]]
) -> None:
    prompt, answer = next(iter(plain.items()))
    first = ServerProcess(datastore)
    with first:
        address = first.ready()
        client = connect(address, target)
        assert client is not None
        with client:
            drafter = new_drafter(Method("dense", 8), resources(target, datastore, client)).drafter
            decoder = SpeculativeDecoder(target, drafter, limits=DraftLimits(nodes=8))
            seen: list[int] = []

            def kill_in_the_middle(token: int) -> None:
                seen.append(token)
                if len(seen) == NEW_TOKENS // 2:
                    first.send(signal.SIGKILL)
                    first.process.wait(PATIENCE_S)

            killed = decoder.generate(prompt, chat=True, max_new_tokens=NEW_TOKENS, on_token=kill_in_the_middle)
            assert_same_answer(target, prompt, answer, killed.tokens)
            assert 0 < killed.stats.retrievals_answered < killed.stats.retrievals

            with ServerProcess(datastore, listen=address) as second:
                second.ready()
                answers = (decoder.generate(prompt, chat=True, max_new_tokens=8) for _ in range(200))
                back = next((out for out in answers if out.stats.retrievals_answered), None)
                assert back is not None, "no draft came after the restart"
                assert back.tokens == answer[:8]
