"""A vLLM that answers and embeds for `dresd-retriever build --engine vllm`, which starts it as a process.

Lines of JSON on stdin say what to do, first {"model", "max_length"}, then jobs; lines on stdout say {"progress": n} and
in the end {"done": true, ...} or {"failed": "a sentence"}. Tensors go through safetensors files that a job names. Ends
with stdin. Knows vLLM's surface; what it takes from the inside comes through `harvest`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

# Read when vLLM is imported. In one process, its model runner can be reached.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from decoder_client.engines.vllm.versions import check_version
from decoder_client.errors import DecoderError

if TYPE_CHECKING:
    from vllm import SamplingParams

    from decoder_client.engines.vllm.harvest import Harvest

_UNLIMITED = 2**31 - 1


class Worker:
    """An engine, and what is asked of it."""

    def __init__(self, model: str, max_length: int, said: TextIO) -> None:
        """Loads the model, in float32 on a processor and in bfloat16 elsewhere, as building does by itself.

        Args:
            model: folder or hub name.
            max_length: tokens of a text; more than the configuration's is as many as that says.
            said: where progress is told.
        """
        import vllm
        from vllm.platforms import current_platform

        check_version(vllm.__version__)
        on_cpu = current_platform.is_cpu()
        self._llm = vllm.LLM(
            model,
            dtype="float32" if on_cpu else "bfloat16",
            max_model_len=max_length if max_length < _UNLIMITED else None,
            enforce_eager=on_cpu,
            # States of what is in the cache would not be seen.
            enable_prefix_caching=False,
            generation_config="vllm",
        )
        # Only now: vLLM for processors looks into every module that is loaded, and fails on numba's.
        from decoder_client.engines.vllm.harvest import Harvest

        self._harvest: Harvest = Harvest(self._llm)
        self._said = said

    def answer(self, job: Mapping[str, Any]) -> dict[str, object]:
        """The answers to prompts, each sampled with a seed of its own."""
        from vllm import SamplingParams

        prompts: Sequence[Sequence[int]] = job["prompts"]
        most = int(job["max_new_tokens"])
        sampling = [
            SamplingParams(
                temperature=job["temperature"],
                max_tokens=min(most, job["max_length"] - len(prompt)),
                seed=(job["seed"] + number) % 2**63 if job["temperature"] else None,
                stop_token_ids=job["ends"],
                ignore_eos=True,  # those of the job count
                detokenize=False,
            )
            for number, prompt in enumerate(prompts)
        ]
        return {"answers": self._generate(prompts, sampling, each=most)}

    def embed(self, job: Mapping[str, Any]) -> dict[str, object]:
        """States or keys of places in documents, and likely next tokens of some, into a file."""
        from vllm import SamplingParams

        texts = self._harvest.begin(job["given"], job["reducer"])
        self._generate(texts, [SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)] * len(texts), each=0)
        self._harvest.finish(job["found"])
        return {}

    def _generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams], *, each: int
    ) -> list[list[int]]:
        """Answers; a finished one counts as `each` tokens of progress, or as its prompt and one more for 0."""
        engine = self._llm.llm_engine
        for number, (prompt, how) in enumerate(zip(prompts, sampling, strict=True)):
            engine.add_request(str(number), {"prompt_token_ids": list(prompt)}, how)
        answers: list[list[int]] = [[] for _ in prompts]
        counted = [0] * len(prompts)
        while engine.has_unfinished_requests():
            grown = 0
            for output in engine.step():
                number = int(output.request_id)
                answers[number] = list(output.outputs[0].token_ids)
                whole = each or len(prompts[number]) + 1
                now = whole if output.finished else min(len(answers[number]), whole)
                grown += now - counted[number]
                counted[number] = now
            if grown:
                say(self._said, {"progress": grown})
        return answers


def say(out: TextIO, message: Mapping[str, object]) -> None:
    """One line."""
    out.write(json.dumps(message) + "\n")
    out.flush()


def main() -> None:
    """Does jobs until stdin ends."""
    worker: Worker | None = None
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what vLLM prints, as soon as it is imported, must not come between the lines
        for line in sys.stdin:
            job = json.loads(line)
            done: dict[str, object] = {}
            try:
                if worker is None:
                    worker = Worker(job["model"], job["max_length"], out)
                else:
                    done = worker.answer(job) if job["do"] == "answer" else worker.embed(job)
            except DecoderError as error:
                say(out, {"failed": str(error)})
            else:
                say(out, {"done": True, **done})


if __name__ == "__main__":
    main()
