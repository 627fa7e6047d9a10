"""Sampled answers are distributed as without drafts."""

from __future__ import annotations

from collections import Counter

from scipy.stats import chi2_contingency
from vllm import SamplingParams

from tests.support.evaluation import TinyWorld
from tests.support.serving import ServerProcess
from tests.support.vllm_engine import Engine, engine, some_prompts

SAMPLES = 3000
[PROMPT] = some_prompts(1)


def counts(one: Engine, seed: int) -> Counter[tuple[int, ...]]:
    """How often each continuation of three tokens came."""
    found: Counter[tuple[int, ...]] = Counter()
    for begin in range(0, SAMPLES, 500):
        sampling = [
            SamplingParams(temperature=1.0, top_k=3, max_tokens=3, ignore_eos=True, seed=seed + begin + place)
            for place in range(500)
        ]
        found.update(answer for [answer] in one.generate([PROMPT] * 500, sampling))
    return found


def test_the_distribution_is_that_of_the_model(world: TinyWorld) -> None:
    with engine(world.model, drafts=False) as one:
        plain = counts(one, seed=0)
    with ServerProcess(world.datastore) as server:
        settings = {"retriever": server.ready(), "adaptive": False}
        with engine(world.model, drafts=True, settings=settings) as one:
            drafted = counts(one, seed=10**6)
            totals = one.proposer.totals
    # Some drafts are taken and others are not, or nothing is tested here.
    assert 0.05 < totals.acceptance_rate < 0.95
    often = [text for text, count in (plain + drafted).items() if count >= 20]
    table = [[one[text] for text in often] for one in (plain, drafted)]
    assert len(often) > 5
    assert chi2_contingency(table).pvalue > 1e-4
