"""Our proposer with a stopwatch."""

from __future__ import annotations

import time
from collections.abc import Collection

from decoder_client.engines.vllm.engine_step import EngineStep
from decoder_client.engines.vllm.proposer import DresdProposer

STEP_SECONDS: list[float] = []
"""What `TimedProposer` took in each step."""


class TimedProposer(DresdProposer):
    """Notes what all of our code takes in a step: reading the pass, the call to the service, and drafting."""

    def propose_step(self, step: EngineStep, known: Collection[str]) -> list[list[int]]:
        """See `hook.StepProposer`."""
        began = time.perf_counter()
        drafts = super().propose_step(step, known)
        STEP_SECONDS.append(time.perf_counter() - began)
        return drafts
