"""Real vLLM engines of a tiny model, one after the other in the test's own process; import it only where vLLM is."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from vllm import LLM, RequestOutput, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

from decoder_client.engines.vllm import DresdProposer

DRAFT_TOKENS = 8
DRESD = {
    "method": "custom_class",
    "model": "decoder_client.engines.vllm.DresdProposer",
    "num_speculative_tokens": DRAFT_TOKENS,
}
MAX_LENGTH = 128
Outputs = list[list[tuple[int, ...]]]
"""Of each prompt, each of its answers' tokens."""


class Engine:
    """A vLLM with a tiny model.

    Attributes:
        llm: vLLM's own.
    """

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._names = 0

    @property
    def proposer(self) -> DresdProposer:
        """The one that the engine drafts with."""
        worker = self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker
        return getattr(worker, "worker", worker).model_runner.drafter

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams],
        *,
        between: Callable[[int], None] = lambda _step: None,
        **request: object,
    ) -> Outputs:
        """All answers, decoded together; `between` is called with the number of steps after each."""
        engine = self.llm.llm_engine
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
        names = []
        for prompt, one in zip(prompts, each, strict=True):
            names.append(f"request-{self._names}")
            self._names += 1
            engine.add_request(names[-1], {"prompt_token_ids": list(prompt)}, one, **request)
        done: dict[str, RequestOutput] = {}
        step = 0
        while engine.has_unfinished_requests():
            done |= {output.request_id: output for output in engine.step() if output.finished}
            step += 1
            between(step)
        return [
            [tuple(answer.token_ids) for answer in sorted(done[name].outputs, key=lambda one: one.index)]
            for name in names
            if name in done
        ]


@contextmanager
def engine(
    model: Path, *, drafts: bool, settings: dict[str, object] | None = None, **options: object
) -> Iterator[Engine]:
    """A vLLM; `drafts` turns ours on, by `settings`. `options`: of `LLM`."""
    llm = LLM(
        str(model),
        **{
            "dtype": "float32",
            "max_model_len": MAX_LENGTH,
            "max_num_seqs": 64,
            "enforce_eager": True,
            "speculative_config": DRESD if drafts else None,
            "additional_config": {"dresd": settings or {}},
            **options,
        },
    )
    try:
        yield Engine(llm)
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def some_prompts(count: int, *, length: int = 6, seed: int = 1) -> list[list[int]]:
    """Like those that the tiny world's datastore has answers to; the first five are its own."""
    random = np.random.default_rng(seed)
    return [[int(token) for token in random.integers(60, 70, size=length)] for _ in range(count)]
