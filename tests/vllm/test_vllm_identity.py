"""A vLLM with drafts says what it says without, whatever becomes of the service."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from vllm import SamplingParams

from tests.support.evaluation import TinyWorld
from tests.support.serving import ServerProcess
from tests.support.vllm_engine import Engine, Outputs, engine, some_prompts

GREEDY = SamplingParams(temperature=0.0, max_tokens=60)
PROMPTS = some_prompts(64)
CONCURRENT = (1, 8, 64)


@pytest.fixture(scope="module")
def plain(world: TinyWorld) -> dict[int, Outputs]:
    """The answers of an engine without drafts, by the number of requests at once."""
    with engine(world.model, drafts=False) as one:
        return {count: answers(one, count) for count in CONCURRENT}


@pytest.fixture(scope="module")
def served(world: TinyWorld) -> Iterator[ServerProcess]:
    with ServerProcess(world.datastore) as process:
        yield process


@pytest.fixture(scope="module")
def drafting(world: TinyWorld, served: ServerProcess, plain: dict[int, Outputs]) -> Iterator[Engine]:
    assert plain  # one engine at a time: that of the plain answers is closed
    settings = {"retriever": served.ready(), "adaptive": False, "deadline_ms": 100}
    with engine(world.model, drafts=True, settings=settings) as one:
        yield one


def answers(one: Engine, count: int) -> Outputs:
    """Of all prompts; one at a time of the first few."""
    if count == 1:
        return [answer for prompt in PROMPTS[:6] for answer in one.generate([prompt], GREEDY)]
    batches = [PROMPTS[begin : begin + count] for begin in range(0, len(PROMPTS), count)]
    return [answer for batch in batches for answer in one.generate(batch, GREEDY)]


@pytest.mark.parametrize("count", CONCURRENT)
def test_with_the_service(drafting: Engine, plain: dict[int, Outputs], count: int) -> None:
    before = drafting.proposer.retriever.stats.answered
    accepted = drafting.proposer.totals.accepted
    assert answers(drafting, count) == plain[count]
    assert drafting.proposer.retriever.stats.answered > before
    assert drafting.proposer.totals.accepted > accepted


def test_with_a_service_that_stops_answering_and_goes_on(
    drafting: Engine, plain: dict[int, Outputs], served: ServerProcess
) -> None:
    def between(step: int) -> None:
        if step == 3:
            served.send(signal.SIGSTOP)
        if step == 12:
            served.send(signal.SIGCONT)

    assert drafting.generate(PROMPTS, GREEDY, between=between) == plain[64]
    assert drafting.proposer.retriever.stats.late > 0


def test_with_a_service_that_dies(drafting: Engine, plain: dict[int, Outputs], served: ServerProcess) -> None:
    def between(step: int) -> None:
        if step == 3:
            served.send(signal.SIGKILL)

    assert drafting.generate(PROMPTS, GREEDY, between=between) == plain[64]
    assert answers(drafting, 8) == plain[8]


def test_with_a_service_that_never_was(world: TinyWorld, plain: dict[int, Outputs]) -> None:
    settings = {"retriever": "127.0.0.1:9", "adaptive": False}
    with engine(world.model, drafts=True, settings=settings) as one:
        assert answers(one, 8) == plain[8]
        assert one.proposer.totals.accepted > 0


def test_with_the_switch(world: TinyWorld, plain: dict[int, Outputs]) -> None:
    with engine(world.model, drafts=True) as one:
        assert answers(one, 8) == plain[8]
        assert one.proposer.totals.steps_with_draft > 0
        # The last requests end after the last step that could have told of it.
        assert one.proposer.num_sessions <= 8
