"""Drafting for an engine's steps: whose rows are whose, what is kept of a request, and what is asked and told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoder_client.drafting import MixtureConfig, MixtureDrafter
from decoder_client.engines.vllm.step_drafter import StepDrafter
from decoder_client.engines.vllm.switch import BatchSwitch
from tests.support.drafts import FakeRetriever, FixedDrafter, OracleDrafter, handshake_of, some_reducer
from tests.support.engine import HIDDEN, VOCAB, SimulatedEngine


def always() -> BatchSwitch:
    return BatchSwitch(adaptive=False)


def steps_of(drafter: object, **settings: object) -> StepDrafter:
    return StepDrafter(drafter, always(), handshake=lambda: None, **settings)


class Answers:
    """An oracle that finds its text by what it is asked, since sessions of an engine begin without a prompt."""

    def __init__(self, texts: list[list[int]], *, right: float, seed: int) -> None:
        self._oracle = OracleDrafter(*texts, vocab_size=VOCAB, right=right, paths=1, seed=seed)
        self._texts = texts

    def start(self, _prompt: object) -> dict[str, object]:
        return {}

    def propose(self, requests: list) -> list:
        for one in requests:
            text = next(text for text in self._texts if text[: len(one.text)] == list(one.text))
            object.__setattr__(one, "session", (text, 0.7))
        return self._oracle.propose(requests)

    def observe(self, session: dict, outcome: object) -> None:
        session.setdefault("told", []).append(outcome)


class Recorder(Answers):
    """Checks every outcome against what the engine knows of the place."""

    def observe(self, session: dict, outcome: object) -> None:
        new = list(outcome.text[len(outcome.text) - outcome.count :])
        states = outcome.states
        number = {int(state) for state in states[:, 0]}
        assert len(number) == 1
        session.setdefault("number", number.pop())
        assert {session["number"]} == {int(state) for state in states[:, 0]}
        # The states are of the places before the newest tokens, in order.
        places = states[:, 1].int().tolist()
        assert places == list(range(len(outcome.text) - 1 - len(places), len(outcome.text) - 1))
        if "length" in session:
            assert session["length"] + outcome.count == len(outcome.text)
            assert len(places) == outcome.count
        session["length"] = len(outcome.text)
        likely = outcome.likely()
        assert likely.next_tokens[:, 0].tolist() == [token % VOCAB for token in new[-len(likely.next_tokens) :]]
        text = [-1, *outcome.text]
        ends = range(len(text) - len(likely.contexts), len(text))
        assert likely.contexts.tolist() == [[text[end - 2], text[end - 1]] for end in ends]
        assert len(outcome.nodes) <= len(outcome.tree)
        assert list(outcome.tree.tokens[list(outcome.nodes)]) == new[: len(outcome.nodes)]


TEXTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=12),
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=25),
    ),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=60)
@given(TEXTS, st.integers(1, 30), st.integers(0, 3), st.integers(0, 100))
def test_every_request_is_shown_its_own_rows(
    texts: list[tuple[list[int], list[int]]], chunk: int, cut: int, seed: int
) -> None:
    # A number of its own in front of each prompt tells them apart.
    whole = [([place, *prompt], answer) for place, (prompt, answer) in enumerate(texts)]
    drafter = Recorder([prompt + answer for prompt, answer in whole], right=0.7, seed=seed)
    steps = steps_of(drafter)
    engine = SimulatedEngine(steps, chunk=chunk, trim=lambda draft: draft[: len(draft) - cut])
    for place, (prompt, answer) in enumerate(whole):
        engine.add(f"request {place}", prompt, answer)
        engine.step()
    engine.run()
    assert steps.totals.tokens == sum(len(answer) for _, answer in whole)
    assert steps.totals.accepted <= steps.totals.drafted


def test_drafts_end_where_nothing_can_follow() -> None:
    engine = SimulatedEngine(steps_of(FixedDrafter([range(20)])), room=14)
    engine.add("a", [1, 2, 3], [30] * 20)
    lengths = []
    while engine.steps == [] or len(engine.steps[-1].requests[0].text) < 13:
        engine.step()
        lengths.append((len(engine.steps[-1].requests[0].text), engine.steps[-1].requests[0].drafted))
    # Verified in a pass: what there was room for before it.
    assert all(drafted == max(0, min(12, 14 - (length - 1))) for length, drafted in lengths[1:])


def test_a_request_that_is_gone_leaves_nothing() -> None:
    steps = steps_of(FixedDrafter([[1]]))
    engine = SimulatedEngine(steps)
    engine.add("short", [1, 2], [3, 4])
    engine.add("aborted", [1, 2], [3] * 50)
    engine.add("long", [1, 2], [3] * 9)
    engine.step()
    assert steps.num_sessions == 3
    engine.abort("aborted")
    engine.run()
    engine.add("last", [1, 2], [3, 4, 5])
    engine.step()
    assert steps.num_sessions == 1
    steps.keep_only([])
    assert steps.num_sessions == 0


def test_a_request_that_was_preempted_goes_on_as_if_it_had_not_been() -> None:
    texts = [[0, 1, 2, *range(10, 40)]]
    drafter = Recorder(texts, right=1.0, seed=0)
    engine = SimulatedEngine(steps_of(drafter), chunk=5)
    engine.add("a", texts[0][:3], texts[0][3:])
    engine.step()
    engine.step()
    engine.preempt("a")
    engine.run()


def test_another_request_of_the_same_name_starts_anew() -> None:
    drafter = FixedDrafter([[1]])
    engine = SimulatedEngine(steps_of(drafter))
    engine.add("a", [1, 2, 3, 4], [5, 6, 7])
    engine.step()
    engine._running.clear()  # without a word
    engine.add("a", [9, 8], [7, 6, 5])
    engine.step()
    assert [session for session, _, _ in drafter.told] == [0, 1]
    assert drafter.told[-1][1] == [9, 8, 7]


def connected(adapter: str = "") -> tuple[FakeRetriever, StepDrafter]:
    retriever = FakeRetriever(handshake_of(some_reducer(HIDDEN)), [[20, 21]])
    drafter = MixtureDrafter(retriever, vocab_size=VOCAB, config=MixtureConfig(path=True))
    return retriever, StepDrafter(drafter, always(), handshake=lambda: retriever.handshake, adapter=adapter)


def test_all_requests_of_a_step_ask_in_one_call() -> None:
    retriever, steps = connected()
    engine = SimulatedEngine(steps)
    for place in range(5):
        engine.add(f"{place}", [place, 1, 2], [20, 21, 22, 23])
    engine.step()
    assert [len(call.keys) for call in retriever.asked] == [5]
    reducer = retriever.handshake.reducer
    expected = reducer.reduce(np.array([[place, 2] + [0] * (HIDDEN - 2) for place in range(5)], np.float32))
    assert np.allclose(retriever.asked[0].keys, expected, atol=1e-3)


@pytest.mark.parametrize(("store", "looked_up"), [("", "base"), ("poems", "with poems")])
def test_only_states_of_the_datastores_own_adapter_are_looked_up(store: str, looked_up: str) -> None:
    retriever, steps = connected(store)
    engine = SimulatedEngine(steps)
    numbers = {
        "base": engine.add("base", [0, 1, 2], [3, 4, 5]),
        "with poems": engine.add("with poems", [1, 1, 2], [3, 4, 5], adapter="poems"),
        "with code": engine.add("with code", [2, 1, 2], [3, 4, 5], adapter="code"),
    }
    engine.step()
    [call] = retriever.asked
    expected = retriever.handshake.reducer.reduce(np.array([[numbers[looked_up], 2] + [0] * (HIDDEN - 2)], np.float32))
    assert np.allclose(call.keys, expected, atol=1e-3)


@pytest.mark.parametrize(("name", "value"), [("down", True), ("handshake", None)])
def test_without_the_service_drafts_come_from_the_text(name: str, value: object) -> None:
    retriever, steps = connected()
    setattr(retriever, name, value)
    engine = SimulatedEngine(steps)
    engine.add("a", [5, 6, 7, 8] * 4, [5, 6, 7, 8] * 8)
    engine.run()
    assert steps.totals.accepted > 10


def test_a_request_whose_room_is_used_up_is_not_asked_for() -> None:
    drafter = FixedDrafter([[1]])
    engine = SimulatedEngine(steps_of(drafter), room=0)
    engine.add("a", [1, 2], [3, 4, 5])
    engine.run()
    assert drafter.asked == []


def test_an_engine_that_keeps_its_logits_is_drafted_for_too() -> None:
    _, steps = connected()
    engine = SimulatedEngine(steps, with_logits=False)
    engine.add("a", [5, 6, 7, 8] * 4, [5, 6, 7, 8] * 8)
    engine.run()
    assert steps.totals.accepted > 10
