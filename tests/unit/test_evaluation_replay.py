"""Replaying a known answer: counts, what the drafter is asked and told, and the predicted time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoder_client.drafting.drafter import NoDrafter
from decoder_client.evaluation.recording import RecordingDrafter
from decoder_client.evaluation.replay import Replayed, replay
from decoder_client.evaluation.results import MODEL
from decoder_client.evaluation.traces import Trace
from dresd.draft_tree import ROOT, DraftTree
from dresd.path_merging import merge_paths
from tests.support.drafts import padded, tree_of, trees
from tests.support.evaluation import ScriptedDrafter, made_up_trace

VOCAB = 4


def run(drafter: ScriptedDrafter | NoDrafter, trace: Trace, *, limit: int = 100, **options: object) -> Replayed:
    watched = RecordingDrafter(drafter, ["only"])
    settled = {"max_nodes": 8, "max_depth": 16, "max_new_tokens": limit, "pass_seconds": None} | options
    return replay(watched, trace, **settled)


def test_without_drafts_every_token_costs_a_pass() -> None:
    trace = made_up_trace([1, 2], [3, 1, 2, 3])
    for drafter in (NoDrafter(), ScriptedDrafter([DraftTree.empty()])):
        stats = run(drafter, trace).stats
        assert (stats.tokens, stats.forwards, stats.steps, stats.steps_with_draft, stats.drafted) == (4, 4, 3, 0, 0)


def test_the_longest_right_path_is_accepted_and_a_token_more() -> None:
    trace = made_up_trace([9], [5, 6, 7, 8, 5, 6])
    # The prompt's pass gives 5. First tree: 6 7 is right, 8 is the bonus; second: 5 is right, 6 the bonus.
    found = run(ScriptedDrafter([tree_of([[6, 7, 9], [6, 1], [3]]), tree_of([[5]])]), trace)
    stats = found.stats
    assert (stats.tokens, stats.forwards, stats.steps, stats.steps_with_draft) == (6, 3, 2, 2)
    assert (stats.drafted, stats.accepted) == (5 + 1, 2 + 1)
    assert found.recording.offered_by_depth == (2, 1, 1)
    assert found.recording.accepted_by_depth == (2, 1, 0)
    assert found.recording.origins == (MODEL, "only", "only", MODEL, "only", MODEL)
    assert found.recording.steps == (0, 1, 1, 1, 2, 2)


def test_the_last_token_is_the_targets_own() -> None:
    # The whole rest is drafted, and more; a decode loop would stop at the end token and not count it as accepted.
    stats = run(ScriptedDrafter([tree_of([[6, 7, 1, 1]])]), made_up_trace([9], [5, 6, 7])).stats
    assert (stats.tokens, stats.forwards, stats.accepted) == (3, 2, 1)


prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5)
answers = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(prompts, answers, st.lists(trees(VOCAB), min_size=1, max_size=4))
def test_every_step_is_that_of_decoding(prompt: list[int], answer: list[int], proposals: list[DraftTree]) -> None:
    trace = made_up_trace(prompt, answer)
    tokens = [*prompt, *answer]
    drafter = ScriptedDrafter(proposals)
    found = run(drafter, trace, limit=len(answer) + 20)
    stats = found.stats
    assert drafter.prompts == [prompt]
    assert stats.tokens == len(answer) == stats.accepted + stats.forwards
    assert stats.forwards == stats.steps + 1 == len(drafter.told)

    texts = [text for text, _ in drafter.told]
    assert texts[0] == tokens[: len(prompt) + 1]
    assert texts[-1] == tokens
    # Every question follows what was told last, with the state that predicted its newest token.
    assert [text for text, *_ in drafter.asked] == texts[:-1]
    for text, state, _, _ in drafter.asked:
        assert (state == trace.states[len(text) - 2]).all()

    first = drafter.told[0][1]
    assert (first.count, len(first.tree), first.states.shape[0]) == (1, 0, len(prompt))
    likely = first.likely()
    assert likely.contexts.tolist() == [[prompt[-2] if len(prompt) > 1 else -1, prompt[-1]]]
    for (before, _), (after, outcome) in pairwise(drafter.told):
        old = len(before)
        new = after[old:]
        assert outcome.count == len(new) == len(outcome.nodes) + 1 == len(outcome.states)
        assert outcome.tree.tokens[list(outcome.nodes)].tolist() == new[:-1]
        assert (outcome.states == trace.states[old - 1 : old - 1 + len(new)]).all()
        likely = outcome.likely()
        assert likely.contexts[:, 1].tolist() == after[old - 1 : -1]
        assert likely.next_tokens[:, 0].tolist() == new
        assert likely.probabilities.shape == likely.next_tokens.shape


@pytest.mark.parametrize(("limit", "depths"), [(6, [4, 3, 2, 1]), (20, [16, 16, 16, 15, 14])])
def test_no_draft_reaches_beyond_the_limit_that_the_answer_was_made_under(limit: int, depths: list[int]) -> None:
    drafter = ScriptedDrafter([DraftTree.empty()])
    run(drafter, made_up_trace([1], [2, 3, 2, 3, 2, 3]), limit=limit)
    assert [depth for *_, depth in drafter.asked] == depths
    assert {nodes for _, _, nodes, _ in drafter.asked} == {8}


def test_no_nodes_no_questions() -> None:
    drafter = ScriptedDrafter([tree_of([[3]])])
    stats = run(drafter, made_up_trace([1], [2, 3, 3]), max_nodes=0).stats
    assert (drafter.asked, len(drafter.told), stats.forwards) == ([], 3, 3)


def test_predicted_seconds_are_those_of_the_passes_and_the_measured_drafting() -> None:
    stats = run(
        ScriptedDrafter([tree_of([[6, 7], [1]])]), made_up_trace([9], [5, 6, 7, 8, 5]), pass_seconds=lambda n: 10.0 * n
    ).stats
    # The prompt's pass counts as one token's; then passes over 1 + 3 nodes.
    assert stats.forward_s == 10.0 + 40.0 + 40.0
    assert stats.total_s == stats.forward_s + stats.draft_s
    assert stats.draft_s > 0


def test_a_method_that_verifies_more_than_its_tree_is_charged_for_it() -> None:
    class Rows(ScriptedDrafter):
        def verified(self, session: int) -> int:
            assert session == 1
            return 30

    rows = Rows([tree_of([[6, 7]]), DraftTree.empty()])
    stats = run(rows, made_up_trace([9], [5, 6, 7, 8, 5]), pass_seconds=float, counts=rows).stats
    assert (stats.drafted, stats.accepted) == (30, 2)
    assert stats.forward_s == 1.0 + 31.0 + 1.0  # nothing was drafted for the last token


def test_origins_are_read_off_the_heaviest_mass() -> None:
    weights = np.array([[0.1, 0.5], [0.9, 0.0]])
    queries = np.zeros(2, np.int64)
    tree = merge_paths(queries, padded([[6, 7], [6, 8]]), weights, num_queries=1, max_nodes=9)[0]
    watched = RecordingDrafter(ScriptedDrafter([tree]), ["dense", "context"])
    found = replay(
        watched, made_up_trace([9], [5, 6, 7, 8]), max_nodes=8, max_depth=8, max_new_tokens=50, pass_seconds=None
    )
    assert found.recording.origins == (MODEL, "dense", "context", MODEL)


def test_promises_are_counted_by_tenths() -> None:
    tokens, parents = np.array([3, 4, 5], np.int32), np.array([ROOT, ROOT, 0], np.int32)
    tree = DraftTree(tokens, parents, np.array([[0.9], [0.05], [0.85]]))
    watched = RecordingDrafter(ScriptedDrafter([tree]), ["only"], promises=True)
    found = replay(
        watched, made_up_trace([1], [2, 3, 9]), max_nodes=8, max_depth=4, max_new_tokens=100, pass_seconds=None
    )
    promises = found.recording.promises
    assert [one.nodes for one in promises] == [1, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert [one.accepted for one in promises] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert sum(one.promised for one in promises) == pytest.approx(1.8)
