"""A replay must count what decoding counts: the same drafter, the same answers, the same steps."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from decoder_client.cache_folder import cache_folder
from decoder_client.drafting import CostCurve
from decoder_client.evaluation.baselines.suffix_extension import extension_folder
from decoder_client.evaluation.decoding import new_decode
from decoder_client.evaluation.methods import METHODS, Method, max_nodes, methods, new_drafter
from decoder_client.evaluation.replay import replay
from decoder_client.evaluation.resources import MethodError, Resources
from decoder_client.evaluation.results import PLAIN
from decoder_client.evaluation.token_records import read_token_records
from decoder_client.evaluation.traces import Trace, load_traces
from decoder_client.loop import DraftLimits
from decoder_client.stats import GenerationStats
from decoder_client.target_model import load_target_model
from tests.support.evaluation import MAX_NEW_TOKENS, TinyWorld
from tests.support.models import save_tiny_model

# A replay cannot know what the target would have said behind rejected nodes, from which Token Recycling learns.
LEARNS_FROM_REJECTED = "token-recycling"

CURVE = CostCurve((1, 65), (1.0, 1.5))


@pytest.fixture(scope="module")
def traces(world: TinyWorld) -> list[Trace]:
    records = read_token_records(world.traces, vocab_size=world.target.vocab_size)
    return load_traces(records, world.target, world.traces.parent, on_trace=lambda _done: None)


def resources(world: TinyWorld) -> Resources:
    return Resources(world.target.identity(), datastore=world.datastore, cache=cache_folder(), measure=lambda: CURVE)


def counts(stats: GenerationStats) -> dict[str, int]:
    return {field.name: getattr(stats, field.name) for field in fields(stats) if not field.name.endswith("_s")}


def usable(name: str) -> bool:
    return not name.startswith("suffix-decoding") or extension_folder(cache_folder()).exists()


@pytest.mark.parametrize("name", [name for name in METHODS if name != LEARNS_FROM_REJECTED])
def test_a_replay_counts_what_decoding_counts(world: TinyWorld, traces: list[Trace], name: str) -> None:
    if not usable(name):
        pytest.skip("run scripts/build_suffix_decoding.py for this one")
    shared = resources(world)
    for method in methods([name], [3, 16]):
        decode = new_decode(world.target, shared, MAX_NEW_TOKENS, method)
        watched = new_drafter(method, shared)
        accepted = 0
        for trace in traces:
            decoded = decode(trace.record.prompt)
            assert decoded.tokens == trace.record.answer
            replayed = replay(
                watched.drafter,
                trace,
                max_nodes=max_nodes(method),
                max_depth=DraftLimits().max_depth,
                max_new_tokens=MAX_NEW_TOKENS,
                pass_seconds=None,
            )
            assert counts(replayed.stats) == counts(decoded.stats)
            ours, theirs = replayed.recording, decoded.recording
            assert replace(ours, promises=()) == replace(theirs, promises=())
            # Probabilities differ a little: while decoding, likely tokens are read in one cheap pass.
            promised = [sum(tenth.promised for tenth in one.promises) for one in (ours, theirs)]
            assert promised[0] == pytest.approx(promised[1], rel=0.05)
            accepted += replayed.stats.accepted
        assert (accepted > 0) == (name != PLAIN)


def test_recordings_agree_with_the_stats(world: TinyWorld) -> None:
    decode = new_decode(world.target, resources(world), MAX_NEW_TOKENS, Method("dense", 16))
    for record in read_token_records(world.traces, vocab_size=world.target.vocab_size):
        decoded = decode(record.prompt)
        recording, stats = decoded.recording, decoded.stats
        assert recording.offered_by_depth[0] == stats.steps_with_draft
        assert sum(recording.accepted_by_depth) == stats.accepted
        assert sum(origin == "dense" for origin in recording.origins) == stats.accepted
        assert len(recording.origins) == len(recording.steps) == stats.tokens
        assert recording.steps[-1] + 1 == stats.forwards


def test_token_recycling_learns_more_while_decoding(world: TinyWorld) -> None:
    decode = new_decode(world.target, resources(world), MAX_NEW_TOKENS, Method("token-recycling", 16))
    records = read_token_records(world.traces, vocab_size=world.target.vocab_size)
    first = [decode(record.prompt) for record in records]
    assert [one.tokens for one in first] == [record.answer for record in records]
    again = decode(records[0].prompt)
    assert again.stats.steps_with_draft > first[0].stats.steps_with_draft  # what it learned it keeps


@pytest.mark.parametrize("name", [name for name in METHODS if name not in {PLAIN, "prompt-lookup", "token-recycling"}])
def test_a_method_without_its_store_says_what_to_name(world: TinyWorld, name: str) -> None:
    if not usable(name):
        pytest.skip("run scripts/build_suffix_decoding.py for this one")
    empty = Resources(world.target.identity(), cache=cache_folder(), measure=lambda: CURVE)
    with pytest.raises(MethodError, match="--datastore"):
        new_drafter(Method(name, 8), empty)


def test_a_datastore_of_another_model_is_refused(world: TinyWorld, tmp_path: Path) -> None:
    other = load_target_model(save_tiny_model("llama", tmp_path / "other", seed=5))
    wrong = Resources(other.identity(), datastore=world.datastore, cache=tmp_path, measure=lambda: CURVE)
    with pytest.raises(MethodError, match=r"another model's.*weights_fingerprint"):
        new_drafter(Method("dense", 8), wrong)


def test_budgets_that_make_no_difference_are_left_out() -> None:
    chosen = methods([PLAIN, "prompt-lookup", "rest", "dresd-paper", "dresd"], [8, 32, 128])
    assert [method.label for method in chosen] == [
        "plain", "prompt-lookup@8", "prompt-lookup@10", "rest@8", "rest@32", "rest@64", "dresd-paper", "dresd@8",
        "dresd@32", "dresd@128",
    ]  # fmt: skip
    with pytest.raises(MethodError, match="Unknown method 'magic'"):
        methods(["plain", "magic"], [8])
