"""Made-up records of results, as evaluations write them, for what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from decoder_client.evaluation.results import (
    BENCH,
    MODEL,
    PLAIN,
    REPLAY,
    Answer,
    CostPoint,
    Environment,
    MethodResult,
    Results,
    Sample,
    SampleToken,
    StoreInfo,
)
from decoder_client.evaluation.summary import compare, summarise
from decoder_client.stats import GenerationStats


def answers(nodes: int, *, seconds: float = 1.0, tokens: tuple[int, ...] | None = (1,)) -> list[Answer]:
    drafted = 20 * nodes
    return [
        Answer(
            prompt,
            0,
            GenerationStats(
                tokens=60, forwards=21 if nodes else 60, steps=20 if nodes else 59, steps_with_draft=min(drafted, 20),
                drafted=drafted, accepted=min(drafted, 39), retrievals=min(drafted, 20), retrieval_s=0.1 * seconds,
                draft_s=0.2 * seconds, forward_s=0.7 * seconds, verify_s=0.1 * seconds, total_s=seconds,
            ),
            (20, 12, 2) if nodes else (),
            (15, 4, 0) if nodes else (),
            tokens,
        )
        for prompt in ("first", "second")
    ]  # fmt: skip


def method(name: str, nodes: int, label: str, found: Sequence[Answer], plain: Sequence[Answer]) -> MethodResult:
    return summarise(label, name, nodes, found, plain)


TIMED = answers(0, seconds=3.0)
METHODS = (
    method(PLAIN, 0, PLAIN, TIMED, TIMED),
    method("rest", 8, "rest@8", answers(8, seconds=2.5), TIMED),
    method("rest", 64, "rest@64", answers(64, seconds=2.0), TIMED),
    method("dresd-paper", 0, "dresd-paper", answers(5), TIMED),
    method("dresd", 8, "dresd@8", answers(8, seconds=1.5), TIMED),
    method("dresd", 64, "dresd@64", answers(64), TIMED),
)
TOKENS = (
    SampleToken("def", MODEL, 0),
    SampleToken(" f", "dense", 1),
    SampleToken("():\n\n\t", "sparse", 1),
    SampleToken("", "table", 1),
    SampleToken("return", MODEL, 1),
    SampleToken(" <1>", "context", 2),
    SampleToken(" &", "suffix trees", 2),
)
BENCHED = Results(
    kind=BENCH,
    model="a model",
    weights_fingerprint="ab",
    prompts=("first", "second"),
    store=StoreInfo("a build", 1234),
    settings={"prompts": "prompts.jsonl", "nodes": (8, 64), "limit": None},
    environment=Environment(
        ("dresd-decoder", "bench", "--html", "a b.html"), "2026-02-03T04:05:06+00:00", "3.11", "an OS", "a processor",
        "a GPU", 2, 1, {"OMP_NUM_THREADS": "1"}, {"torch": "2.9"},
    ),
    methods=METHODS,
    comparisons=compare(METHODS, lambda _: True),
    samples=(Sample("first", "dresd@64", TOKENS),),
    cost_curve=(CostPoint(1, 0.05), CostPoint(9, 0.06), CostPoint(65, 0.2)),
    notes=("mind the gap",),
)  # fmt: skip
UNTIMED = answers(0, seconds=0.0, tokens=None)
REPLAYED_METHODS = (
    method(PLAIN, 0, PLAIN, UNTIMED, UNTIMED),
    method("dresd", 8, "dresd@8", answers(8, seconds=0.0, tokens=None), UNTIMED),
)
REPLAYED = replace(
    BENCHED,
    kind=REPLAY,
    methods=REPLAYED_METHODS,
    comparisons=(),
    samples=(),
    cost_curve=(),
    store=None,
    notes=(),
    settings={},
)
PLAIN_ALONE = replace(BENCHED, methods=METHODS[:1], comparisons=(), samples=(), cost_curve=())
NOTHING_RUN = replace(PLAIN_ALONE, methods=(), prompts=(), notes=())
RECORDS = {"bench": BENCHED, "replay": REPLAYED, "plain": PLAIN_ALONE, "nothing": NOTHING_RUN}
