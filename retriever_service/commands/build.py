"""dresd-retriever build: a datastore from a corpus and a model."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from dresd.argument_types import some_path, whole_number
from retriever_service.commands.building import add_answer_options, add_corpus_options, add_work_options, configured
from retriever_service.commands.output import human_bytes, human_seconds
from retriever_service.echo import printable

if TYPE_CHECKING:
    from retriever_service.building.config import BuildConfig

_OWN = ("dims", "codec", "partitions", "continuation_length", "fit_tokens", "table_tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    add_corpus_options(
        parser,
        model="folder or hub name of a transformers model",
        corpus="paths, patterns, or s3://, gs:// and hdfs:// URLs of .jsonl or .parquet with prompt and response, "
        "messages, text, or prompt_ids and response_ids; or .txt",
        out="the datastore's folder, made here",
    )
    parser.add_argument(
        "--partitions", type=whole_number, default=1, metavar="P", help="parts by next token; default: 1"
    )
    parser.add_argument("--dims", type=whole_number, default=64, metavar="N", help="numbers in a key; default: 64")
    parser.add_argument(
        "--codec", default="sq8", metavar="NAME", help="flat, sq8, sq4 or pq: how keys are coded; default: sq8"
    )
    parser.add_argument(
        "--continuation",
        dest="continuation_length",
        type=whole_number,
        default=16,
        metavar="N",
        help="tokens kept after an entry; default: 16",
    )
    parser.add_argument(
        "--fit-tokens", type=whole_number, default=32_768, metavar="N", help="states keys are fitted on; default: 32768"
    )
    parser.add_argument(
        "--table-tokens", type=whole_number, default=1_000_000, metavar="N",
        help="positions whose likely next tokens go into the token table; default: 1000000",
    )  # fmt: skip
    parser.add_argument(
        "--reducer-of", type=some_path, metavar="DIR", help="make keys as this datastore does, to merge the two later"
    )
    add_answer_options(parser)
    work = add_work_options(parser)
    work.add_argument(
        "--dry-run", action="store_true", help="print what the build would take, from a sample, and write nothing"
    )


def run(arguments: argparse.Namespace) -> int:
    """Builds, and prints a summary to stdout."""
    from retriever_service.building.job import build
    from retriever_service.building.progress import TerminalProgress

    started = time.monotonic()
    with configured(arguments, *_OWN) as config:
        if arguments.dry_run:
            return _dry_run(config, as_json=arguments.json)
        manifest = build(config, TerminalProgress())
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
        f"{printable(str(arguments.out))}: {summary['documents']:,} documents, {manifest.num_entries:,} entries, "
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
