"""The program: the same prompts go to vLLM with every method in turn, round after round; prints a table.

The engines live beside each other, and only one works at a time, so that what changes on the machine meanwhile meets
all of them. Times need a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.vllm.engines import METHODS, Answered, EngineProcess, engine_of, served
from benchmarks.vllm.prompts import read_prompts
from decoder_client.cache_folder import cache_folder

MODEL = "SmolLM2-135M-Instruct"
PROMPTS = Path(__file__).resolve().parents[2] / "examples" / "stdlib" / "test.jsonl"


@dataclass(frozen=True, slots=True)
class Row:
    """One method with so many requests at once.

    Attributes:
        method: one of `METHODS`.
        requests: at once.
        prompts: answered.
        identical: answers that are token for token those of the first method.
        tokens_per_s: of all requests together, prompts read included.
        relative: that by the first method's.
        rounds: the same for each round.
        tokens_per_forward: of one request; passes for it, not steps of the engine.
        drafted_per_forward: draft tokens verified for one request in a pass.
        step_ms: median and 99th percentile of our own time in a step; None for methods that are not ours.
    """

    method: str
    requests: int
    prompts: int
    identical: int
    tokens_per_s: float
    relative: float
    rounds: tuple[float, ...]
    tokens_per_forward: float
    drafted_per_forward: float
    step_ms: tuple[float, float] | None


def main(arguments: list[str] | None = None) -> int:
    """Measures what was asked for."""
    options = _parser().parse_args(arguments)
    rows: list[Row] = []
    with ExitStack() as stack:
        address = stack.enter_context(served(options.datastore or _of_the_demo())).address
        engines = {method: stack.enter_context(_engine(options, method, address)) for method in options.methods}
        prompts = read_prompts(options.prompts, options.model, options.rounds * max(options.counts))
        for engine in engines.values():
            engine.answer(prompts[-1:], requests=1, new_tokens=8)  # what is compiled or allocated once
        for requests, count in zip(options.requests, options.counts, strict=True):
            print(f"{requests} requests at once ...", file=sys.stderr, flush=True)
            answered: dict[str, list[Answered]] = {method: [] for method in engines}
            for turn in range(options.rounds):
                some = prompts[turn * count : (turn + 1) * count]
                for method, engine in engines.items():
                    answered[method].append(engine.answer(some, requests=requests, new_tokens=options.new_tokens))
            rows += [_row(method, requests, answered[method], answered[options.methods[0]]) for method in engines]
            print(as_text(rows[-len(engines) :]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


def _row(method: str, requests: int, rounds: list[Answered], first: list[Answered]) -> Row:
    whole, reference = _sum(rounds), _sum(first)
    forwards = whole.tokens - whole.accepted
    times = 1e3 * np.array(whole.step_seconds or [np.nan])
    p50, p99 = (float(one) for one in np.percentile(times, (50, 99)))
    relative = [_speed(one) / _speed(other) for one, other in zip(rounds, first, strict=True)]
    return Row(
        method=method,
        requests=requests,
        prompts=len(whole.answers),
        identical=sum(one == other for one, other in zip(whole.answers, reference.answers, strict=True)),
        tokens_per_s=_speed(whole),
        relative=_speed(whole) / _speed(reference),
        rounds=tuple(relative),
        tokens_per_forward=whole.tokens / forwards,
        drafted_per_forward=whole.drafted / forwards,
        step_ms=(p50, p99) if whole.step_seconds else None,
    )


def _sum(rounds: list[Answered]) -> Answered:
    whole = rounds[0]
    for one in rounds[1:]:
        whole += one
    return whole


def _speed(answered: Answered) -> float:
    return answered.tokens / answered.seconds


def _engine(options: argparse.Namespace, method: str, address: str) -> EngineProcess:
    return engine_of(options, method, address, adaptive=method != "dresd-all", engines=len(options.methods))


def _of_the_demo() -> Path:
    found = [path for path in cache_folder().glob("demo-datastore-*") if path.is_dir()]
    if not found:
        raise SystemExit("there is no datastore of the demo; run: python examples/demo.py --build-only")
    return max(found, key=lambda path: path.stat().st_mtime)


def as_text(rows: list[Row]) -> str:
    """A Markdown table."""
    lines = [
        "| requests | method | identical | tokens/s | by plain | of each round | tokens per forward | drafted "
        "| our ms a step |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        rounds = " · ".join(f"{one:.2f}" for one in row.rounds)
        ratio = f"{row.relative:.2f}x | {rounds}"
        ours = "" if row.step_ms is None else f"{row.step_ms[0]:.2f} (p99 {row.step_ms[1]:.2f})"
        lines.append(
            f"| {row.requests} | {row.method} | {row.identical} of {row.prompts} | {row.tokens_per_s:.1f} "
            f"| {ratio} | {row.tokens_per_forward:.2f} | {row.drafted_per_forward:.1f} | {ours} |"
        )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm", description="vLLM with and without drafts.")
    parser.add_argument("--model", type=Path, default=cache_folder() / MODEL, help="a folder; default: the demo's")
    parser.add_argument("--datastore", type=Path, help="of the same model; default: the demo's")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="a file; default: the demo's held-out ones")
    parser.add_argument("--methods", type=_names, default=METHODS[:3], help=f"of {','.join(METHODS)}")
    parser.add_argument("--requests", type=_numbers, default=[1, 4, 16, 64], help="at once; default: 1,4,16,64")
    parser.add_argument("--counts", type=_numbers, default=[4, 8, 48, 64], help="prompts a round; default: 4,8,48,64")
    parser.add_argument("--rounds", type=int, default=2, help="of all methods; default: 2")
    parser.add_argument("--new-tokens", type=int, default=128, help="of an answer, at most; default: 128")
    parser.add_argument("--draft-tokens", type=int, default=12, help="for a request in a pass; default: 12")
    parser.add_argument("--dtype", default="float32", help="of the weights; default: float32")
    parser.add_argument("--compiled", action="store_true", help="with vLLM's compiled kernels and CUDA graphs")
    parser.add_argument("--json", type=Path, help="write everything here")
    return parser


def _numbers(written: str) -> list[int]:
    return [int(number) for number in written.split(",")]


def _names(written: str) -> tuple[str, ...]:
    names = tuple(written.split(","))
    if not set(names) <= set(METHODS):
        raise argparse.ArgumentTypeError(f"some of {','.join(METHODS)} are expected, not {written}")
    return names


if __name__ == "__main__":
    sys.exit(main())
