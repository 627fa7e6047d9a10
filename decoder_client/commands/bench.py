"""dresd-decoder bench: decodes the prompts of a file with several drafters in turn and compares them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from decoder_client.commands.options import at_least, between
from decoder_client.errors import DecoderError

if TYPE_CHECKING:
    from decoder_client.evaluation.bench import Measurement, Method
    from decoder_client.generation import SpeculativeDecoder
    from decoder_client.retriever import RetrieverClient
    from decoder_client.stats import GenerationStats
    from decoder_client.target_model import TargetModel


class BenchError(DecoderError):
    """A benchmark cannot run as asked."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("--model", required=True, metavar="M", help="folder or hub name of a transformers model")
    parser.add_argument("--retriever", metavar="HOST:PORT", help="the service that dense and dresd draft from")
    parser.add_argument(
        "--prompts", required=True, type=Path, metavar="FILE", help=".jsonl of prompt, messages or prompt_ids"
    )
    parser.add_argument("--methods", default="plain,dresd", metavar="A,B", help="of plain, prompt-lookup, dense, dresd")
    parser.add_argument(
        "--nodes", default="32", metavar="N,M", help="node budgets each method is run with; default: 32"
    )
    parser.add_argument("--max-new-tokens", type=at_least(int, 1), default=128, metavar="N", help="default: 128")
    parser.add_argument("--limit", type=at_least(int, 1), metavar="N", help="only the first N prompts")
    parser.add_argument("--repeats", type=at_least(int, 1), default=1, metavar="N", help="of the whole set; default: 1")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which methods take turns")
    parser.add_argument(
        "--deadline-ms", type=at_least(float, 0.1), default=50.0, metavar="MS", help="longest wait for a draft"
    )
    parser.add_argument("--threads", type=between(int, 1, 1024), metavar="N", help="of the model; default: torch's own")
    parser.add_argument("--no-chat", action="store_true", help="leave texts out of the model's chat template")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every measurement to this file")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints; 1 if an output differs from plain decoding by more than float32 rounding explains."""
    methods = _methods(arguments.methods, arguments.nodes)
    out = _writable(arguments.json)
    import torch
    from transformers.utils import logging as transformers_logging

    from decoder_client.evaluation import report
    from decoder_client.evaluation.bench import run_bench
    from decoder_client.evaluation.logit_gap import logit_gap
    from decoder_client.evaluation.methods import needs_retriever
    from decoder_client.evaluation.prompts import read_prompts
    from decoder_client.target_model import load_target_model

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    asking = sorted({method.name for method in methods if needs_retriever(method.name)})
    if asking and not arguments.retriever:
        raise BenchError(
            f"{', '.join(asking)} needs a retriever. Start `dresd-retriever serve` and name it with --retriever."
        )
    target = load_target_model(arguments.model)
    chat = not arguments.no_chat and bool(target.tokenizer is not None and target.tokenizer.chat_template)
    prompts = read_prompts(arguments.prompts, target, chat=chat, limit=arguments.limit)
    client = _connected(arguments.retriever, arguments.deadline_ms, target) if asking else None
    try:
        decoders = _decoders(target, methods, client)

        def decode(method: Method, prompt: tuple[int, ...]) -> tuple[tuple[int, ...], GenerationStats]:
            answer = decoders[method].generate(prompt, max_new_tokens=arguments.max_new_tokens)
            return answer.tokens, answer.stats

        def show(measured: list[Measurement]) -> None:
            print("\n".join(report.prompt_lines(measured)), flush=True)

        print(report.prompt_header())
        measurements = run_bench(
            prompts,
            methods,
            decode,
            partial(logit_gap, target),
            repeats=arguments.repeats,
            seed=arguments.seed,
            on_prompt=show,
        )
    finally:
        if client is not None:
            client.close()
    if out is not None:
        settings = {name: str(value) for name, value in vars(arguments).items()}
        record = report.json_record(measurements, settings, report.environment(torch.get_num_threads()))
        # Before the table, so that a terminal that cannot show it costs no measurement.
        _write(out, json.dumps(record, indent=1))
    print(f"\n{report.markdown_table(report.summarise(measurements))}")
    wrong = [one for one in measurements if one.difference is not None and not one.difference.is_near_tie]
    if wrong:
        raise BenchError(
            f"{len(wrong)} outputs differ from plain decoding by more than float32 rounding explains, the first one "
            f"for {wrong[0].prompt} with {wrong[0].method}. This must not happen: please report it."
        )
    return 0


def _methods(names: str, budgets: str) -> list[Method]:
    from decoder_client.evaluation.bench import PLAIN, Method
    from decoder_client.evaluation.methods import METHODS

    try:
        nodes = [int(budget) for budget in budgets.split(",")]
    except ValueError:
        raise BenchError(f"--nodes takes whole numbers with commas between them, not {budgets!r}.") from None
    if not all(1 <= budget <= 1024 for budget in nodes):
        raise BenchError("--nodes must lie in 1..1024.")
    methods = []
    for name in names.split(","):
        if name not in METHODS:
            raise BenchError(f"Unknown method {name!r}. Choose among {', '.join(METHODS)}.")
        methods += [Method(name, 0)] if name == PLAIN else [Method(name, budget) for budget in nodes]
    return list(dict.fromkeys(methods))


def _writable(out: Path | None) -> Path | None:
    """Refuses a result file that could not be written, before an hour of measuring."""
    if out is not None and (out.is_dir() or not os.access(out.parent, os.W_OK)):
        raise BenchError(f"Cannot write {str(out)!r}. Name a file in a folder that exists and is writable.")
    return out


def _write(out: Path, text: str) -> None:
    try:
        if out.exists() and not out.is_file():
            out.write_text(text, encoding="utf-8")  # a device or a pipe is written to, not replaced
            return
        beside = out.with_name(f".{out.name}.partial")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(out)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise BenchError(f"Cannot write {str(out)!r}: {error.strerror}. Name another file for --json.") from error


def _connected(address: str, deadline_ms: float, target: TargetModel) -> RetrieverClient:
    """A client that has shaken hands: a benchmark without its service would measure nothing."""
    from decoder_client.retriever import RetrieverClient, RetrieverConfig

    client = RetrieverClient(RetrieverConfig(address=address, deadline_ms=deadline_ms))
    try:
        client.connect(target.identity())
    except BaseException:
        client.close()
        raise
    return client


def _decoders(
    target: TargetModel, methods: Sequence[Method], client: RetrieverClient | None
) -> dict[Method, SpeculativeDecoder]:
    from decoder_client.evaluation.methods import make_drafters
    from decoder_client.generation import SpeculativeDecoder
    from decoder_client.loop import DraftLimits

    return {
        method: SpeculativeDecoder(target, make_drafters(method.name, client), limits=DraftLimits(nodes=method.nodes))
        for method in methods
    }
