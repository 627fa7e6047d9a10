"""dresd-retriever merge: one datastore of the entries of several."""

from __future__ import annotations

import argparse
import json

from dresd.argument_types import between, some_path
from retriever_service.commands.derived import add_writing_options, builds_of, chosen_codec, written
from retriever_service.commands.output import human_bytes
from retriever_service.echo import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "datastore", type=some_path, nargs="+", metavar="DIR", help="builds' folders, or roots of builds; one is enough"
    )
    add_writing_options(parser)
    parser.add_argument(
        "--partitions", type=between(int, 1, 4096), metavar="P", help="parts by next token; default: the most of any"
    )
    parser.add_argument(
        "--codec", metavar="NAME", help="flat, sq8, sq4 or pq: how keys are coded; default: as they are"
    )


def run(arguments: argparse.Namespace) -> int:
    """Merges, and prints a summary to stdout."""
    from retriever_service.evolving import merge

    codec = chosen_codec(arguments.codec)
    sources = builds_of(arguments.datastore)
    with written(arguments, "Merging", arguments.datastore, sources) as work:
        manifest = merge(
            sources,
            work.directory,
            partitions=arguments.partitions,
            codec=codec,
            seed=arguments.seed,
            command=work.command,
            on_entries=work.on_entries,
        )
    summary = {
        "datastore": str(arguments.out),
        "build_id": manifest.build_id,
        "entries": manifest.num_entries,
        "sources": [source.model_dump() for source in manifest.made_from],
        "partitions": len(manifest.partitions),
        "bytes": manifest.total_bytes,
        "recall": manifest.recall,
    }
    if arguments.json:
        print(json.dumps(summary, indent=1))
        return 0
    joined = ", ".join(f"{source.num_entries:,}" for source in manifest.made_from)
    print(
        f"{printable(str(arguments.out))}: {manifest.num_entries:,} entries ({joined}), "
        f"{human_bytes(manifest.total_bytes)}; recall@50 {manifest.recall:.3f} of the keys that were read back"
    )
    return 0
