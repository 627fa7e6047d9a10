"""The program `python -m benchmarks.vllm.identity`: answers with drafts must be those without, whatever becomes of the
service: up, slow (stopped half of the time), killed in the middle, or never there. Prints a table; exit code 1 if an
answer differed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.vllm.engines import Answered, EngineProcess, Served, engine_of, served
from benchmarks.vllm.prompts import read_prompts

_STOPPED_S = 0.2
"""Of each turn of a slow service; as long, it answers. More than the deadline of a call."""
_NOBODY = "127.0.0.1:9"
STATES = ("up", "slow", "killed", "absent")


@dataclass(frozen=True, slots=True)
class Row:
    """Answers to the same prompts, so many at once, with a service in one of `STATES`."""

    requests: int
    state: str
    prompts: int
    identical: int
    with_drafts: Answered

    def __str__(self) -> str:
        drafts = f"{self.with_drafts.accepted} of {self.with_drafts.drafted}"
        return f"| {self.requests} | {self.state} | {self.identical} of {self.prompts} | {drafts} |"


def main(arguments: list[str] | None = None) -> int:
    """Compares what was asked for."""
    options = _parser().parse_args(arguments)
    prompts = read_prompts(options.prompts, options.model, options.count)
    same = True
    print("| requests | service | identical | draft tokens accepted |\n| --- | --- | --- | --- |", flush=True)
    with ExitStack() as stack:
        service = stack.enter_context(served(options.datastore))
        plain = stack.enter_context(_engine(options, "plain", ""))
        # The killed one comes last: it does not come back.
        states = [state for state in ("up", "slow", "absent", "killed") if state in options.states]
        drafting = {
            address: stack.enter_context(_engine(options, "dresd-all", address))
            for address in {_NOBODY if state == "absent" else service.address for state in states}
        }
        expected: dict[int, Answered] = {}
        for state in states:
            engine = drafting[_NOBODY if state == "absent" else service.address]
            for requests in options.requests:
                if requests not in expected:
                    expected[requests] = plain.answer(prompts, requests=requests, new_tokens=options.new_tokens)
                with _made(state, service, after_s=expected[requests].seconds / 4):
                    found = engine.answer(prompts, requests=requests, new_tokens=options.new_tokens)
                pairs = zip(expected[requests].answers, found.answers, strict=True)
                row = Row(requests, state, len(prompts), sum(one == other for one, other in pairs), found)
                same = same and row.identical == row.prompts
                print(row, flush=True)
    return 0 if same else 1


@contextmanager
def _made(state: str, service: Served, *, after_s: float) -> Iterator[None]:
    """A service in that state while the block runs; one to be killed is, `after_s` seconds after its beginning."""
    ended = threading.Event()

    def stop_and_go() -> None:
        while not ended.wait(_STOPPED_S):
            service.process.send_signal(signal.SIGSTOP)
            ended.wait(_STOPPED_S)
            service.process.send_signal(signal.SIGCONT)

    def kill() -> None:
        ended.wait(after_s)
        service.process.kill()

    does = {"slow": stop_and_go, "killed": kill}.get(state)
    if does is None:
        yield
        return
    thread = threading.Thread(target=does)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _engine(options: argparse.Namespace, method: str, address: str) -> EngineProcess:
    tensor_parallel = options.tensor_parallel if method != "plain" else 1
    return engine_of(options, method, address, adaptive=False, engines=3, tensor_parallel=tensor_parallel)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm.identity", description="Are answers the same?")
    parser.add_argument("--model", type=Path, required=True, help="a folder")
    parser.add_argument("--datastore", type=Path, required=True, help="of the same model")
    parser.add_argument("--prompts", type=Path, required=True, help="a file")
    parser.add_argument("--count", type=int, default=200, help="prompts; default: 200")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64], help="at once; default: 1 8 64")
    parser.add_argument("--states", nargs="+", choices=STATES, default=STATES, help="of the service; default: all")
    parser.add_argument("--new-tokens", type=int, default=32, help="of an answer, at most; default: 32")
    parser.add_argument("--draft-tokens", type=int, default=8, help="for a request in a pass; default: 8")
    parser.add_argument("--dtype", default="float32", help="of the weights; default: float32")
    parser.add_argument("--compiled", action="store_true", help="with vLLM's compiled kernels and CUDA graphs")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="of engines with drafts; default: 1")
    return parser


if __name__ == "__main__":
    sys.exit(main())
