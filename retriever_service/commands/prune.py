"""dresd-retriever prune: a smaller datastore of the entries that are needed most."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from dresd.argument_types import at_least, between, some_path
from retriever_service.commands.derived import add_writing_options, builds_of, written
from retriever_service.commands.output import human_bytes
from retriever_service.echo import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("datastore", type=some_path, metavar="DIR", help="a build's folder, or a root of builds")
    parser.add_argument(
        "--max-entries", required=True, type=at_least(int, 1), metavar="N", help="entries of the new one, at most"
    )
    add_writing_options(parser)
    parser.add_argument(
        "--similarity",
        type=between(float, 0.0, 1.0),
        default=0.98,
        metavar="S",
        help="cosine from which keys with the same next token and continuation are near-duplicates; default: 0.98",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prunes, and prints what it costs."""
    from retriever_service.evolving import prune

    sources = builds_of([arguments.datastore])
    with written(arguments, "Pruning", [arguments.datastore], sources) as work:
        pruned = prune(
            sources[0],
            work.directory,
            arguments.max_entries,
            similarity=arguments.similarity,
            seed=arguments.seed,
            command=work.command,
            on_entries=work.on_entries,
        )
    before, after = pruned.before, pruned.manifest
    summary: Mapping[str, object] = {
        "datastore": str(arguments.out),
        "build_id": after.build_id,
        "entries_before": before.num_entries,
        "entries": after.num_entries,
        "near_duplicates": pruned.near_duplicates,
        "others": pruned.others,
        "bytes_before": before.total_bytes,
        "bytes": after.total_bytes,
        "recall_before": before.recall,
        "recall": after.recall,
        "tokens_per_pass_before": pruned.tokens_per_pass_before,
        "tokens_per_pass": pruned.tokens_per_pass,
    }
    if arguments.json:
        print(json.dumps(summary, indent=1))
        return 0
    print(
        f"{printable(str(arguments.out))}: {after.num_entries:,} of {before.num_entries:,} entries; left out "
        f"{pruned.near_duplicates:,} near-duplicates and {pruned.others:,} others\n"
        f"  size             {human_bytes(before.total_bytes)} -> {human_bytes(after.total_bytes)}\n"
        f"  recall@50        {before.recall:.3f} -> {after.recall:.3f} (of the keys that are left)\n"
        f"  tokens per pass  {pruned.tokens_per_pass_before:.2f} -> {pruned.tokens_per_pass:.2f} "
        "(dense drafts at places like those of stored entries)"
    )
    return 0
