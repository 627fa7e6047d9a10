"""What a decoder promises around the tokens themselves: ends, limits, callbacks, measures, trouble with drafts."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from decoder_client.drafting import AnyDrafter, DraftRequest, MixtureConfig, MixtureDrafter, any_drafter
from decoder_client.generation import Generation, SpeculativeDecoder
from decoder_client.loop import DraftLimits, GenerationError
from decoder_client.target_model import TargetModel, TargetModelError, load_target_model
from dresd.draft_tree import DraftTree
from tests.support.drafts import FakeRetriever, FixedDrafter, OracleDrafter, handshake_of, some_reducer
from tests.support.models import save_tiny_model, tiny_model

VOCAB, LENGTH = 48, 64
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def target() -> TargetModel:
    torch.manual_seed(3)
    return TargetModel(tiny_model("llama", vocab_size=VOCAB, max_length=LENGTH))


@pytest.fixture(scope="module")
def text_target(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    return load_target_model(save_tiny_model("llama", tmp_path_factory.mktemp("model") / "llama"))


@pytest.fixture(scope="module")
def answer(target: TargetModel) -> list[int]:
    return list(SpeculativeDecoder(target).generate(PROMPT, max_new_tokens=30).tokens)


def oracle(answer: list[int], right: float = 1.0) -> AnyDrafter:
    return any_drafter(OracleDrafter(PROMPT + answer, vocab_size=VOCAB, right=right))


def with_ends(target: TargetModel, ends: list[int]) -> TargetModel:
    class Ending(TargetModel):
        eos_token_ids = frozenset(ends)

    return Ending(target.model)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 30])
def test_the_answer_has_at_most_max_new_tokens(target: TargetModel, answer: list[int], limit: int) -> None:
    for decoder in (SpeculativeDecoder(target), SpeculativeDecoder(target, oracle(answer))):
        generation = decoder.generate(PROMPT, max_new_tokens=limit)
        assert list(generation.tokens) == answer[:limit]
        assert generation.finish_reason == "length"
        assert generation.stats.tokens == limit


def test_the_answer_ends_at_the_models_length(target: TargetModel) -> None:
    plain = SpeculativeDecoder(target).generate(PROMPT, max_new_tokens=1000)
    assert len(plain.tokens) == LENGTH - len(PROMPT)
    drafted = SpeculativeDecoder(target, oracle(list(plain.tokens))).generate(PROMPT, max_new_tokens=1000)
    assert drafted.tokens == plain.tokens


@pytest.mark.parametrize("at", [0, 1, 5, 29])
def test_an_end_token_ends_the_answer_within_a_draft_too(target: TargetModel, answer: list[int], at: int) -> None:
    end = answer[at]
    ending = with_ends(target, [end])
    seen: list[int] = []
    for decoder in (SpeculativeDecoder(ending), SpeculativeDecoder(ending, oracle(answer))):
        seen.clear()
        generation = decoder.generate(PROMPT, max_new_tokens=30, on_token=seen.append)
        assert list(generation.tokens) == answer[: answer.index(end) + 1] == seen
        assert generation.finish_reason == "end"


def test_stop_strings_end_the_answer_and_are_cut_from_the_text(text_target: TargetModel) -> None:
    prompt = "def f():"
    plain = SpeculativeDecoder(text_target).generate(prompt, max_new_tokens=30)
    stop = plain.text[4:6]
    whole = text_target.encode_prompt(prompt) + list(plain.tokens)
    drafter = any_drafter(OracleDrafter(whole, vocab_size=text_target.vocab_size, right=1.0))
    for decoder in (SpeculativeDecoder(text_target), SpeculativeDecoder(text_target, drafter)):
        generation = decoder.generate(prompt, max_new_tokens=30, stop=["never in it", stop])
        assert generation.finish_reason == "stop"
        assert generation.text == plain.text[: plain.text.index(stop)]
        assert generation.tokens == plain.tokens[: len(generation.tokens)]
        assert stop in text_target.decode(generation.tokens)
        assert stop not in text_target.decode(generation.tokens[:-1])


def test_tokens_are_handed_over_in_order_and_before_the_end(target: TargetModel, answer: list[int]) -> None:
    seen: list[int] = []
    SpeculativeDecoder(target, oracle(answer, 0.8)).generate(PROMPT, max_new_tokens=30, on_token=seen.append)
    assert seen == answer


def test_the_key_is_the_state_that_predicted_the_newest_token(target: TargetModel, answer: list[int]) -> None:
    class Recorder(OracleDrafter):
        def propose(self, requests: list[DraftRequest]) -> list[DraftTree]:
            checked.extend((list(request.text), request.state.clone()) for request in requests)
            return super().propose(requests)

    checked: list[tuple[list[int], torch.Tensor]] = []
    drafter = Recorder(PROMPT + answer, vocab_size=VOCAB, right=0.6, paths=3)
    SpeculativeDecoder(target, any_drafter(drafter)).generate(PROMPT, max_new_tokens=30)
    assert len(checked) > 5
    for text, state in checked:
        assert text == (PROMPT + answer)[: len(text)]
        ids = torch.tensor([text])
        expected = target.hidden_states(ids, torch.ones_like(ids))[0, -2]
        torch.testing.assert_close(state, expected, atol=1e-4, rtol=1e-4)


def test_plain_decoding_has_one_token_a_forward(target: TargetModel) -> None:
    stats = SpeculativeDecoder(target).generate(PROMPT, max_new_tokens=20).stats
    assert (stats.tokens, stats.forwards, stats.steps) == (20, 20, 19)
    assert (stats.tokens_per_forward, stats.coverage, stats.drafted, stats.acceptance_rate) == (1.0, 0.0, 0, 0.0)


def test_measures_count_every_step(target: TargetModel, answer: list[int]) -> None:
    started = time.perf_counter()
    stats = (
        SpeculativeDecoder(target, oracle(answer, 0.9), limits=DraftLimits(nodes=12))
        .generate(PROMPT, max_new_tokens=30)
        .stats
    )
    elapsed = time.perf_counter() - started
    assert stats.forwards == stats.steps + 1
    # Each pass gives one token of its own besides those accepted.
    assert stats.tokens == stats.forwards + stats.accepted
    assert stats.tokens_per_forward == pytest.approx(30 / stats.forwards)
    assert stats.acceptance_rate == pytest.approx(stats.accepted / stats.drafted)
    assert stats.mean_accepted == pytest.approx(stats.accepted / stats.steps)
    # The last step may have no room for a draft.
    assert stats.steps - 1 <= stats.steps_with_draft <= stats.steps
    assert 0 < stats.draft_s + stats.forward_s + stats.verify_s <= stats.total_s <= elapsed


def test_stats_add_up(target: TargetModel, answer: list[int]) -> None:
    decoder = SpeculativeDecoder(target, oracle(answer))
    one, other = (decoder.generate(PROMPT, max_new_tokens=n).stats for n in (10, 20))
    both = one + other
    assert both.tokens == 30
    assert both.forwards == one.forwards + other.forwards
    assert both.to_dict()["tokens_per_forward"] == pytest.approx(30 / both.forwards)


def from_service_alone(target: TargetModel, retriever: FakeRetriever) -> AnyDrafter:
    config = MixtureConfig(places=0, tables=False)
    return any_drafter(MixtureDrafter(retriever, vocab_size=target.vocab_size, config=config))


def test_drafts_come_and_go_with_the_service(target: TargetModel, answer: list[int]) -> None:
    retriever = FakeRetriever(handshake_of(some_reducer(target.hidden_size)), paths=[[answer[5]], [answer[6]]])

    def toggle(_token: int) -> None:
        retriever.down = len(retriever.asked) % 3 == 1

    generation = SpeculativeDecoder(target, from_service_alone(target, retriever)).generate(
        PROMPT, max_new_tokens=30, on_token=toggle
    )
    assert list(generation.tokens) == answer
    stats = generation.stats
    # A step without an answer in time is a step without a draft: what came before does not reach that far.
    assert 0 < stats.steps_with_draft == stats.retrievals_answered < stats.retrievals <= stats.steps
    assert stats.retrieval_ms > 0


def test_tokens_the_model_does_not_have_are_not_drafted(target: TargetModel, answer: list[int]) -> None:
    paths = [[VOCAB], [VOCAB + 70_000, 1], [answer[1], 2**31 - 1]]
    retriever = FakeRetriever(handshake_of(some_reducer(target.hidden_size)), paths=paths)
    decoder = SpeculativeDecoder(target, from_service_alone(target, retriever))
    generation = decoder.generate(PROMPT, max_new_tokens=30)
    assert list(generation.tokens) == answer
    assert 0 < generation.stats.drafted <= generation.stats.steps  # answer[1] alone


def test_a_budget_of_no_nodes_asks_nobody(target: TargetModel, answer: list[int]) -> None:
    drafter = FixedDrafter([[1]])
    decoder = SpeculativeDecoder(target, any_drafter(drafter), limits=DraftLimits(nodes=0))
    assert list(decoder.generate(PROMPT, max_new_tokens=30).tokens) == answer
    assert drafter.asked == []


@pytest.mark.parametrize("settings", [{"nodes": 0}, {"context": False}, {"nodes": 0, "context": False}])
def test_a_decoder_with_nothing_to_draft_from_decodes_plainly(
    target: TargetModel, answer: list[int], settings: dict[str, int]
) -> None:
    generation = SpeculativeDecoder.from_pretrained(target, **settings).generate(PROMPT, max_new_tokens=30)
    assert list(generation.tokens) == answer
    assert (generation.stats.forwards, generation.stats.drafted, generation.stats.retrievals) == (30, 0, 0)


def test_a_decoder_answers_one_prompt_after_another(target: TargetModel, answer: list[int]) -> None:
    decoder = SpeculativeDecoder.from_pretrained(target)
    other = [9, 9, 8, 7]
    first = decoder.generate(PROMPT, max_new_tokens=30)
    second = decoder.generate(other, max_new_tokens=30)
    assert list(first.tokens) == answer
    assert second.tokens == SpeculativeDecoder(target).generate(other, max_new_tokens=30).tokens


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([1] * LENGTH, f"{LENGTH} tokens.*window is {LENGTH}"),
        ([VOCAB], "outside 0..47"),
        ([-1], "outside"),
    ],
)
def test_a_prompt_that_cannot_be_decoded_is_refused(target: TargetModel, prompt: list[int], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        SpeculativeDecoder(target).generate(prompt)


def test_a_setting_out_of_range_is_refused(target: TargetModel) -> None:
    with pytest.raises(ValueError, match="max_new_tokens"):
        SpeculativeDecoder(target).generate(PROMPT, max_new_tokens=-1)
    with pytest.raises(ValueError, match="top_p"):
        SpeculativeDecoder(target).generate(PROMPT, top_p=2.0)
    with pytest.raises(ValueError, match="nodes"):
        DraftLimits(nodes=-1)
    with pytest.raises(ValueError, match="max_depth"):
        DraftLimits(max_depth=0)


def test_text_needs_a_tokenizer(target: TargetModel) -> None:
    with pytest.raises(TargetModelError, match="no tokenizer"):
        SpeculativeDecoder(target).generate("hello")


def test_a_chat_is_decoded_by_text_and_by_turns(text_target: TargetModel) -> None:
    decoder = SpeculativeDecoder(text_target)

    def answered(generation: Generation) -> tuple[str, tuple[int, ...]]:
        return generation.text, generation.tokens

    text = decoder.generate("hi", chat=True, max_new_tokens=8)
    turns = decoder.generate([{"role": "user", "content": "hi"}], max_new_tokens=8)
    ids = decoder.generate(text_target.encode_prompt("hi", chat=True), max_new_tokens=8)
    assert answered(text) == answered(turns) == answered(ids)
    assert text.text == text_target.decode(text.tokens)


def test_a_model_in_a_folder_is_enough(tmp_path: Path) -> None:
    folder = save_tiny_model("gpt2", tmp_path / "with space")
    with SpeculativeDecoder.from_pretrained(folder, nodes=8) as decoder:
        generation = decoder.generate("abcabcabc", max_new_tokens=12)
    assert len(generation.tokens) == 12
    assert generation.stats.steps_with_draft > 0


def test_decoders_in_several_threads_share_a_target(target: TargetModel) -> None:
    prompts = [[(number * step) % VOCAB for number in range(1, 20)] for step in range(1, 9)]
    plain = [SpeculativeDecoder(target).generate(prompt, max_new_tokens=30).tokens for prompt in prompts]

    def answers(nodes: int) -> list[tuple[int, ...]]:
        decoder = SpeculativeDecoder.from_pretrained(target, nodes=nodes)
        return [decoder.generate(prompt, max_new_tokens=30).tokens for prompt in prompts for _ in range(3)]

    with ThreadPoolExecutor(4) as threads:
        for given in threads.map(answers, (0, 4, 16, 16)):
            assert given == [answer for answer in plain for _ in range(3)]
