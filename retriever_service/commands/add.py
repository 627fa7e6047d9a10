"""dresd-retriever add: a datastore with new documents, which shares the files of the old one."""

from __future__ import annotations

import argparse
import json
import time

from dresd.argument_types import some_path
from retriever_service.commands.building import add_answer_options, add_corpus_options, add_work_options, configured
from retriever_service.commands.output import human_bytes, human_seconds
from retriever_service.echo import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("reducer_of", type=some_path, metavar="DIR", help="a build's folder, or a root of builds")
    add_corpus_options(
        parser,
        model="the model DIR was built with: folder or hub name",
        corpus="the new documents, as for build",
        out="the new folder, made here",
        place="NEW",
    )
    add_answer_options(parser)
    add_work_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Adds, and prints a summary to stdout."""
    from retriever_service.building.adding import add
    from retriever_service.building.progress import TerminalProgress

    started = time.monotonic()
    with configured(arguments) as config:
        added = add(config, TerminalProgress())
    manifest = added.extended.manifest
    summary = {
        "datastore": str(arguments.out),
        "build_id": manifest.build_id,
        "documents": added.addition.corpus.documents,
        "added": added.extended.added,
        "known": added.extended.verbatim,
        "entries": manifest.num_entries,
        "bytes": manifest.total_bytes,
        "copied_bytes": added.extended.copied_bytes,
        "seconds": round(time.monotonic() - started, 1),
        "recall": manifest.recall,
    }
    if arguments.json:
        print(json.dumps(summary, indent=1))
        return 0
    print(
        f"{printable(str(arguments.out))}: {added.extended.added:,} entries of {added.addition.corpus.documents:,} "
        f"documents added to {added.before.num_entries:,} ({added.extended.verbatim:,} were there) in "
        f"{human_seconds(time.monotonic() - started)}; {human_bytes(manifest.total_bytes)}, of which the old files "
        f"{'are shared' if added.extended.copied_bytes == 0 else 'had to be copied'}; recall@50 {manifest.recall:.3f}"
    )
    return 0
