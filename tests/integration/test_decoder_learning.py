"""Decoders that teach their retriever: what one answered drafts for the next; the output and the pace stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from decoder_client.drafting.local import FinishedText
from decoder_client.engines.transformers_generate import dresd_generate
from decoder_client.errors import SettingError
from decoder_client.generation import SpeculativeDecoder
from decoder_client.learning import LearnConfig, learn_config
from decoder_client.learning.sender import AnswerSender
from decoder_client.retriever import RetrieverClient, RetrieverConfig
from decoder_client.target_model import TargetModel
from retriever_service.serving.learning_config import LearningConfig
from tests.support.learning import random_answer
from tests.support.serving import (
    PATIENCE_S,
    VOCAB,
    ServerThread,
    eventually,
    local_config,
    servable_datastore,
    serving,
)

PROMPT = [3, 1, 4, 1, 5]
PATIENT_MS = 20_000.0


@pytest.fixture(scope="module")
def answer(target: TargetModel) -> tuple[int, ...]:
    return SpeculativeDecoder(target).generate(PROMPT, max_new_tokens=40).tokens


@pytest.fixture
def server(target: TargetModel, tmp_path: Path) -> Iterator[ServerThread]:
    servable_datastore(tmp_path / "store", model=target.identity())
    config = local_config(tmp_path / "store", learning=LearningConfig(tmp_path / "learned"))
    with serving(config) as running:
        yield running


def patient(address: str) -> RetrieverClient:
    return RetrieverClient(RetrieverConfig(address, deadline_ms=PATIENT_MS))


def kept(server: ServerThread):
    return server.server.learning.stores["default"]


def test_what_one_decoder_answers_another_drafts(target, answer, server):
    passes = []
    for learn in (True, False):
        with patient(server.address) as client:
            decoder = SpeculativeDecoder.from_pretrained(target, client, nodes=16, context=False, learn=learn)
            generation = decoder.generate(PROMPT, max_new_tokens=40)
            assert generation.tokens == answer
            passes.append(generation.stats.forwards)
            decoder.close()
            if learn:
                assert decoder.learned.learned == 1
                assert kept(server).num_entries == len(answer)
    assert passes[1] < passes[0] / 2


def test_garbage_that_somebody_had_learned_changes_no_output(target, answer, server):
    store = kept(server)
    dims = store.base.manifest.key_recipe.dims
    garbage = [random_answer(seed, tokens=60, dims=dims, vocab_size=VOCAB) for seed in range(100)]
    assert store.append(garbage).result(PATIENCE_S) == 100 * 57
    with patient(server.address) as client:
        decoder = SpeculativeDecoder.from_pretrained(target, client, nodes=16, context=False)
        generation = decoder.generate(PROMPT, max_new_tokens=40)
    assert generation.tokens == answer
    assert generation.stats.drafted > generation.stats.accepted


def test_the_answers_of_a_batch_are_learned_each(target, server):
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 10]]
    passes = []
    for _ in range(2):
        with patient(server.address) as client:
            decoder = SpeculativeDecoder.from_pretrained(
                target, client, nodes=8, context=False, learn=LearnConfig(min_tokens=1)
            )
            generations = decoder.generate_batch(prompts, max_new_tokens=20)
            decoder.close()
        passes.append([one.stats.forwards for one in generations])
        if len(passes) == 1:
            assert kept(server).num_entries == sum(len(one.tokens) for one in generations)
    assert all(second < first for first, second in zip(*passes, strict=True))


@pytest.mark.parametrize(("number", "length"), [(31, 9_000), (2, 60_000)])
def test_answers_that_wait_together_are_learned_however_long_they_are(target, tmp_path, number, length):
    servable_datastore(tmp_path / "store", model=target.identity())
    config = local_config(tmp_path / "store", learning=LearningConfig(tmp_path / "learned", max_rate=1_000_000))
    with serving(config) as server, patient(server.address) as client:
        client.connect(target.identity())
        sender = AnswerSender(client, LearnConfig(), str)
        for seed in range(number):
            one = random_answer(seed, tokens=length)
            text = FinishedText(one.tokens, 2, one.positions, one.keys.astype("float32"))
            sender.offer(text, client.handshake.reducer.sha256)
        sender.close(PATIENCE_S)
        assert sender.stats.learned == number


def test_transformers_generate_teaches_too(target, server):
    with patient(server.address) as client:
        drafted = dresd_generate(client, nodes=8, learn=True)
        out = target.model.generate(
            torch.tensor([PROMPT]), max_new_tokens=30, do_sample=False, custom_generate=drafted, pad_token_id=0
        )
        drafted.close()
    assert kept(server).num_entries == out.shape[1] - len(PROMPT)


@pytest.mark.parametrize(
    ("config", "stat"),
    [(LearnConfig(sample=0.0), "skipped"), (LearnConfig(min_tokens=41), "skipped")],
)
def test_what_is_not_chosen_is_not_sent(target, server, config, stat):
    with patient(server.address) as client:
        decoder = SpeculativeDecoder.from_pretrained(target, client, nodes=8, learn=config)
        decoder.generate(PROMPT, max_new_tokens=40)
        decoder.close()
        assert getattr(decoder.learned, stat) == 1
    assert kept(server).num_entries == 0


@pytest.mark.parametrize("learning_server", [True, False])
def test_a_service_that_does_not_learn_or_is_gone_costs_counts_only(target, answer, server, tmp_path, learning_server):
    address = server.address
    with (
        serving(local_config(tmp_path / "store")) as deaf,
        patient(address if learning_server else deaf.address) as client,
    ):
        decoder = SpeculativeDecoder.from_pretrained(
            target, client, nodes=8, learn=LearnConfig(queue_size=1, timeout_s=20.0)
        )
        if learning_server:
            server.stop(0.0)
        for _ in range(3):
            assert decoder.generate(PROMPT, max_new_tokens=40).tokens == answer
        eventually(lambda: sum(asdict(decoder.learned).values()) == 3)
        assert decoder.learned.learned == 0
        decoder.close()


@pytest.mark.parametrize(
    ("redact", "words"),
    [
        (lambda text: text, None),
        (lambda text: None, 0),  # noqa: ARG005
        (lambda text: " ".join(text.split()[:7]), 7),
        (lambda text: " ".join([*text.split()[:5], "***", *text.split()[6:]]), 5),
        (lambda text: 1 // 0, 0),  # noqa: ARG005
    ],
)
def test_a_hook_sees_the_text_and_says_how_much_of_it_may_be_kept(target, server, redact, words):
    seen: list[str] = []

    def hook(text: str) -> str | None:
        seen.append(text)
        return redact(text)

    def decode(tokens: Sequence[int]) -> str:
        return " ".join(f"word{token}" for token in tokens)

    answer = random_answer(1, tokens=33, vocab_size=VOCAB, first=2)
    with patient(server.address) as client:
        reducer = client.connect(target.identity()).reducer
        sender = AnswerSender(client, LearnConfig(redact=hook), decode)
        sender.offer(FinishedText(answer.tokens, 3, answer.positions, answer.keys), reducer.sha256)
        sender.close(PATIENCE_S)
    assert seen == [decode(answer.tokens[3:])]
    # Without the prompt there is no key of the answer's first token.
    assert kept(server).num_entries == (29 if words is None else max(0, words - 1))


def test_the_environment_turns_it_on():
    assert learn_config(None, {}) is None
    assert learn_config(None, {"DRESD_LEARN": "0"}) is None
    assert learn_config(False, {"DRESD_LEARN": "1"}) is None
    assert learn_config(None, {"DRESD_LEARN": "1", "DRESD_LEARN_SAMPLE": "0.25"}) == LearnConfig(sample=0.25)
    assert learn_config(True, {"DRESD_LEARN_TOKEN_FILE": "x"}).token_file == Path("x")
    for environment in ({"DRESD_LEARN": "maybe"}, {"DRESD_LEARN": "1", "DRESD_LEARN_SAMPLE": "much"}):
        with pytest.raises(SettingError, match="DRESD_LEARN"):
            learn_config(None, environment)


@pytest.mark.parametrize(
    "changes", [{"sample": 1.5}, {"sample": float("nan")}, {"min_tokens": 0}, {"queue_size": 0}, {"timeout_s": 0.0}]
)
def test_a_setting_out_of_range_is_named(changes):
    with pytest.raises(SettingError, match=next(iter(changes))):
        LearnConfig(**changes)
