"""dresd-retriever add: a datastore with new documents, which shares the files of the old one."""

from __future__ import annotations

import argparse
import json
import time

from dresd.argument_types import non_empty, some_path
from dresd.command_line import UsageError
from retriever_service.commands.build import add_answer_options, add_work_options, answering_options, paths_of
from retriever_service.commands.output import CommandError, human_bytes, human_seconds, recorded_command
from retriever_service.echo import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("reducer_of", type=some_path, metavar="DIR", help="a build's folder, or a root of builds")
    parser.add_argument(
        "--model", required=True, type=non_empty, metavar="M", help="the model DIR was built with: folder or hub name"
    )
    parser.add_argument(
        "--corpus", required=True, nargs="+", type=non_empty, metavar="FILE", help="the new documents, as for build"
    )
    parser.add_argument("--out", required=True, type=some_path, metavar="NEW", help="the new folder, made here")
    parser.add_argument("--prompt-keys", action="store_true", help="store positions of the prompts too")
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave out records that are malformed, as damaged ones always are"
    )
    add_answer_options(parser)
    add_work_options(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Adds, and prints a summary to stdout."""
    given = answering_options(arguments)
    from retriever_service.building.adding import add
    from retriever_service.building.config import BuildConfig, ConfigError
    from retriever_service.building.errors import BuildError
    from retriever_service.building.progress import TerminalProgress

    started = time.monotonic()
    try:
        config = BuildConfig(
            model=arguments.model,
            corpus=tuple(arguments.corpus),
            out=arguments.out,
            prompt_keys=arguments.prompt_keys,
            skip_bad=arguments.skip_bad,
            respond=arguments.respond,
            reducer_of=arguments.reducer_of,
            seed=arguments.seed,
            restart=arguments.restart,
            workers=arguments.workers,
            threads=arguments.threads,
            ray_address=arguments.ray_address,
            command=recorded_command(paths_of(arguments)),
            **given,
        )
        added = add(config, TerminalProgress())
    except ConfigError as error:
        raise UsageError(str(error)) from error
    except BuildError as error:
        raise CommandError(str(error)) from error
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
