"""dresd-retriever build: a datastore from a corpus and a model."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dresd.argument_types import any_number, non_empty, some_path, whole_number
from dresd.command_line import UsageError
from retriever_service.building.errors import BuildError
from retriever_service.commands.output import CommandError, human_bytes, human_seconds, recorded_command

if TYPE_CHECKING:
    from retriever_service.building.config import BuildConfig

_ANSWERING = ("max_new_tokens", "answers_per_prompt", "engine", "temperature", "answers_out")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "--model", required=True, type=non_empty, metavar="M", help="folder or hub name of a transformers model"
    )
    parser.add_argument(
        "--corpus", required=True, nargs="+", type=non_empty, metavar="FILE",
        help="paths, patterns, or s3://, gs:// and hdfs:// URLs of .jsonl or .parquet with prompt and response, "
        "messages, text, or prompt_ids and response_ids; or .txt",
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
    parser.add_argument(
        "--table-tokens", type=whole_number, default=1_000_000, metavar="N",
        help="positions whose likely next tokens go into the token table; default: 1000000",
    )  # fmt: skip
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave out records that are malformed, as damaged ones always are"
    )
    parser.add_argument(
        "--reducer-of", type=some_path, metavar="DIR", help="make keys as this datastore does, to merge the two later"
    )
    add_answer_options(parser)
    work = add_work_options(parser)
    work.add_argument(
        "--dry-run", action="store_true", help="print what the build would take, from a sample, and write nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def add_answer_options(parser: argparse.ArgumentParser) -> None:
    """Declares what is asked of the model where it answers."""
    answers = parser.add_argument_group("answers of the model itself")
    answers.add_argument(
        "--respond", action="store_true", help="let the model answer the prompts, and store its answers"
    )
    # No defaults, so that options without --respond are noticed.
    answers.add_argument("--max-new-tokens", type=whole_number, metavar="N", help="of an answer, at most; default: 128")
    answers.add_argument(
        "--answers-per-prompt", type=whole_number, metavar="N", help="sampled answers to each prompt; default: 1"
    )
    answers.add_argument("--engine", metavar="NAME", help="transformers: what computes answers; default: transformers")
    answers.add_argument("--temperature", type=any_number, metavar="T", help="of an answer; default: 0, greedy")
    answers.add_argument(
        "--answers-out", type=some_path, metavar="FILE", help="also write the answers here, as a corpus .jsonl"
    )


def add_work_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declares how the work is shared out."""
    work = parser.add_argument_group("how the work is done")
    work.add_argument("--seed", type=whole_number, default=0, metavar="N", help="of all that is random; default: 0")
    work.add_argument(
        "--workers", type=whole_number, metavar="N", help="copies of the model; default: one a GPU, or one for 4 cores"
    )
    work.add_argument(
        "--threads", type=whole_number, metavar="N", help="cores of each copy; default: all, shared out evenly"
    )
    work.add_argument(
        "--restart", action="store_true", help="throw the work of an interrupted build of DIR away, and begin anew"
    )
    work.add_argument(
        "--ray-address", metavar="ADDRESS", help="of a running Ray cluster (auto: this machine's); default: none"
    )
    return work


def answering_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those given of the answers; raises UsageError where the model answers nothing."""
    answering = {name: getattr(arguments, name) for name in _ANSWERING}
    given = {name: value for name, value in answering.items() if value is not None}
    if given and not arguments.respond:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{names}: only where the model answers. Add --respond, or leave it out.")
    return given


def run(arguments: argparse.Namespace) -> int:
    """Builds, and prints a summary to stdout."""
    given = answering_options(arguments)
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
            reducer_of=arguments.reducer_of,
            table_tokens=arguments.table_tokens,
            skip_bad=arguments.skip_bad,
            restart=arguments.restart,
            workers=arguments.workers,
            threads=arguments.threads,
            ray_address=arguments.ray_address,
            command=recorded_command(paths_of(arguments)),
            **given,
        )
        if arguments.dry_run:
            return _dry_run(config, as_json=arguments.json)
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
        "duplicates": manifest.corpus.duplicates,
        "bad": manifest.corpus.bad,
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


def _dry_run(config: BuildConfig, *, as_json: bool) -> int:
    from retriever_service.building.dry_run import estimate

    found = estimate(config)
    if as_json:
        print(json.dumps(asdict(found), indent=1))
        return 0
    about = "" if found.exact else "about "
    processor = f"{found.gpus} GPU" if found.gpus else f"{found.workers} worker"
    lines = [
        ("corpus", f"{found.files:,} files, {human_bytes(found.bytes)}"),
        ("prompts" if config.respond else "documents", f"{about}{found.documents:,}"),
        *([("tokens to answer", f"{found.answer_tokens:,} at most")] if config.respond else []),
        ("tokens to embed", f"{about}{found.tokens:,}"),
        ("entries", f"{about}{found.entries:,} in {found.partitions} partitions"),
        ("datastore", f"about {human_bytes(found.datastore_bytes)} on disk"),
        ("work folder", f"about {human_bytes(found.work_bytes)} on disk beside it, until it is built"),
        ("memory", f"{human_bytes(found.worker_bytes)} each worker, {human_bytes(found.index_bytes)} each index"),
        *([("answering", _hours(found.respond_hours, found.answers_per_s, processor))] if config.respond else []),
        ("embedding", _hours(found.embed_hours, found.tokens_per_s, processor)),
        ("the rest", f"about {human_seconds(found.rest_hours * 3600)} of a core"),
    ]
    for name, told in lines:
        print(f"{name:18}{told}")
    return 0


def _hours(hours: float, tokens_per_s: int, processor: str) -> str:
    unit = processor.partition(" ")[2]
    work = f"{hours:,.2f} {unit} hours" if hours >= 1 else f"{human_seconds(hours * 3600)} of a {unit}"
    return f"{work} at {tokens_per_s:,} tokens/s each, of which there are {processor.partition(' ')[0]}"


def paths_of(arguments: argparse.Namespace) -> set[Path]:
    """The files and folders among the arguments of a build."""
    paths = {*map(Path, arguments.corpus), arguments.out, arguments.answers_out, arguments.reducer_of}
    return {*paths, Path(arguments.model)} if Path(arguments.model).is_dir() else paths
