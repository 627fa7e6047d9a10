"""dresd-decoder generate: answers one prompt on stdout."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import TYPE_CHECKING

from decoder_client.commands.options import (
    add_collection,
    add_deadline,
    add_other_weights,
    device,
    retriever_address,
    setting,
    stop_string,
)
from decoder_client.commands.progress_bars import show_what_takes_long
from dresd.argument_types import at_least, non_empty

if TYPE_CHECKING:
    from decoder_client.generation import Generation, SpeculativeDecoder
    from decoder_client.retriever import RetrieverClient
    from decoder_client.stats import GenerationStats


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "--model", required=True, type=non_empty, metavar="M", help="folder or hub name of a transformers model"
    )
    parser.add_argument(
        "--retriever", type=retriever_address, metavar="HOST:PORT", help="drafts from this service too; default: none"
    )
    parser.add_argument("--prompt", required=True, metavar="TEXT")
    parser.add_argument("--chat", action="store_true", help="put the prompt into the model's chat template")
    parser.add_argument("--max-new-tokens", type=at_least(int, 1), default=128, metavar="N", help="default: 128")
    parser.add_argument(
        "--temperature", type=setting("temperature"), default=0.0, metavar="T", help="0 (the default) decodes greedily"
    )
    parser.add_argument(
        "--top-k", type=setting("top_k"), metavar="K", help="sample among the K likeliest tokens; default: all"
    )
    parser.add_argument(
        "--top-p", type=setting("top_p"), metavar="P", help="sample among the likeliest tokens, P in all; default: all"
    )
    parser.add_argument(
        "--repetition-penalty",
        type=setting("repetition_penalty"),
        default=1.0,
        metavar="R",
        help="above 1 against repetition; default: 1",
    )
    parser.add_argument(
        "--stop", type=stop_string, action="append", default=[], metavar="TEXT", help="end at this text; repeatable"
    )
    parser.add_argument("--seed", type=setting("seed"), metavar="N", help="of the samples; default: another each time")
    parser.add_argument(
        "--nodes",
        type=setting("nodes"),
        metavar="N",
        help="draft nodes a step, at most 1024; 0 decodes plainly; default: as many as pay for themselves here",
    )
    add_collection(parser)
    add_deadline(parser)
    add_other_weights(parser)
    parser.add_argument(
        "--dtype",
        choices=["auto", "float32", "bfloat16", "float16"],
        default="auto",
        help="default: auto, which is float32 on a CPU and bfloat16 elsewhere",
    )
    parser.add_argument(
        "--device", type=device, metavar="D", help="cpu, cuda, cuda:1, ...; default: a GPU if there is one"
    )
    parser.add_argument("--stats", action="store_true", help="print what it cost on stderr")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--stream", action="store_true", help="print text as soon as it is certain")
    output.add_argument("--json", action="store_true", help="print text, tokens and stats as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Answers the prompt; 0."""
    from decoder_client.generation import SpeculativeDecoder
    from decoder_client.target_model import load_target_model

    show_what_takes_long()
    target = load_target_model(arguments.model, dtype=arguments.dtype, device=arguments.device)
    client = _client(arguments) if arguments.retriever and arguments.nodes != 0 else None
    try:
        with SpeculativeDecoder.from_pretrained(target, client, nodes=arguments.nodes) as decoder:
            generation = _generate(decoder, arguments)
    finally:
        if client is not None:
            client.close()
    if arguments.json:
        print(_as_json(generation))
    else:
        print("" if arguments.stream else generation.text)
    if arguments.stats:
        print(_as_table(generation.stats), file=sys.stderr)
    return 0


def _client(arguments: argparse.Namespace) -> RetrieverClient:
    from decoder_client.retriever import RetrieverClient, RetrieverConfig

    return RetrieverClient(
        RetrieverConfig(
            arguments.retriever,
            deadline_ms=arguments.deadline_ms,
            require_same_weights=not arguments.allow_other_weights,
            collection=arguments.collection,
        )
    )


def _generate(decoder: SpeculativeDecoder, arguments: argparse.Namespace) -> Generation:
    return decoder.generate(
        arguments.prompt,
        chat=arguments.chat,
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        repetition_penalty=arguments.repetition_penalty,
        stop=arguments.stop,
        seed=arguments.seed,
        on_text=partial(print, end="", flush=True) if arguments.stream else None,
    )


def _as_json(generation: Generation) -> str:
    return json.dumps(
        {
            "text": generation.text,
            "tokens": list(generation.tokens),
            "finish_reason": generation.finish_reason,
            "stats": generation.stats.to_dict(),
        },
        ensure_ascii=False,
    )


def _as_table(stats: GenerationStats) -> str:
    lines = {
        "tokens": f"{stats.tokens} in {stats.forwards} forward passes",
        "tokens per forward": f"{stats.tokens_per_forward:.2f}",
        "acceptance rate": f"{stats.acceptance_rate:.1%} ({stats.accepted} of {stats.drafted} drafted)",
        "coverage": f"{stats.coverage:.1%} of steps had a draft",
        "tokens/s": f"{stats.tokens_per_second:.1f}",
        "retrieval": f"{stats.retrieval_ms:.2f} ms a call, {stats.retrievals_answered} of {stats.retrievals} answered",
        "time": f"{stats.total_s:.2f} s: forward {stats.forward_s:.2f}, drafts {stats.draft_s:.2f}, "
        f"acceptance {stats.verify_s:.2f}",
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())
