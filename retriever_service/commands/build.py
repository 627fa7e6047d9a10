"""dresd-retriever build: a datastore from a corpus and a model."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from dresd.argument_types import any_number, non_empty, some_path, whole_number
from dresd.command_line import UsageError
from retriever_service.building.errors import BuildError
from retriever_service.commands.output import CommandError, human_bytes, human_seconds, recorded_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "--model", required=True, type=non_empty, metavar="M", help="folder or hub name of a transformers model"
    )
    parser.add_argument(
        "--corpus", required=True, nargs="+", type=some_path, metavar="FILE",
        help=".jsonl or .parquet with prompt and response, messages, text, or prompt_ids and response_ids; or .txt",
    )  # fmt: skip
    parser.add_argument("--out", required=True, type=some_path, metavar="DIR", help="the datastore's folder, made here")
    parser.add_argument(
        "--partitions", type=whole_number, default=1, metavar="P", help="parts by next token; default: 1"
    )
    parser.add_argument("--dims", type=whole_number, default=64, metavar="N", help="numbers in a key; default: 64")
    parser.add_argument(
        "--codec", default="sq8", metavar="NAME", help="flat, sq8, sq4 or pq: how keys are coded; default: sq8"
    )
    parser.add_argument(
        "--continuation", type=whole_number, default=16, metavar="N", help="tokens kept after an entry; default: 16"
    )
    parser.add_argument("--prompt-keys", action="store_true", help="store positions of the prompts too")
    parser.add_argument(
        "--fit-tokens", type=whole_number, default=32_768, metavar="N", help="states keys are fitted on; default: 32768"
    )
    answers = parser.add_argument_group("answers of the model itself")
    answers.add_argument(
        "--respond", action="store_true", help="let the model answer the prompts, and store its answers"
    )
    # No defaults, so that options without --respond are noticed.
    answers.add_argument("--max-new-tokens", type=whole_number, metavar="N", help="of an answer, at most; default: 128")
    answers.add_argument("--temperature", type=any_number, metavar="T", help="of an answer; default: 0, greedy")
    answers.add_argument(
        "--answers-out", type=some_path, metavar="FILE", help="also write the answers here, as a corpus .jsonl"
    )
    work = parser.add_argument_group("how the work is done")
    work.add_argument("--seed", type=whole_number, default=0, metavar="N", help="of all that is random; default: 0")
    work.add_argument(
        "--workers", type=whole_number, metavar="N", help="copies of the model; default: one a GPU, or one for 4 cores"
    )
    work.add_argument(
        "--ray-address", metavar="ADDRESS", help="of a running Ray cluster (auto: this machine's); default: none"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Builds, and prints a summary to stdout."""
    answering = {name: getattr(arguments, name) for name in ("max_new_tokens", "temperature", "answers_out")}
    given = {name: value for name, value in answering.items() if value is not None}
    if given and not arguments.respond:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{names}: only where the model answers. Add --respond, or leave it out.")
    from retriever_service.building.config import BuildConfig, ConfigError
    from retriever_service.building.job import build
    from retriever_service.building.progress import TerminalProgress

    started = time.monotonic()
    try:
        config = BuildConfig(
            model=arguments.model,
            corpus=tuple(arguments.corpus),
            out=arguments.out,
            dims=arguments.dims,
            codec=arguments.codec,
            partitions=arguments.partitions,
            continuation_length=arguments.continuation,
            prompt_keys=arguments.prompt_keys,
            respond=arguments.respond,
            seed=arguments.seed,
            fit_tokens=arguments.fit_tokens,
            workers=arguments.workers,
            ray_address=arguments.ray_address,
            command=recorded_command(_paths(arguments)),
            **given,
        )
        manifest = build(config, TerminalProgress())
    except ConfigError as error:
        raise UsageError(str(error)) from error
    except BuildError as error:
        raise CommandError(str(error)) from error
    summary = {
        "datastore": str(arguments.out),
        "build_id": manifest.build_id,
        "documents": manifest.corpus.documents,
        "skipped": manifest.corpus.skipped,
        "split": manifest.corpus.split,
        "tokens": manifest.corpus.tokens,
        "entries": manifest.num_entries,
        "partitions": len(manifest.partitions),
        "bytes": manifest.total_bytes,
        "seconds": round(time.monotonic() - started, 1),
        "recall": manifest.recall,
    }
    if arguments.json:
        print(json.dumps(summary, indent=1))
        return 0
    print(
        f"{arguments.out}: {summary['documents']:,} documents, {manifest.num_entries:,} entries, "
        f"{human_bytes(manifest.total_bytes)} in {human_seconds(time.monotonic() - started)}; "
        f"recall@50 {summary['recall']:.3f}"
    )
    return 0


def _paths(arguments: argparse.Namespace) -> set[Path]:
    paths = {*arguments.corpus, arguments.out, arguments.answers_out}
    return {*paths, Path(arguments.model)} if Path(arguments.model).is_dir() else paths
