"""dresd-retriever tune: how many lists a search reads, chosen by measured recall."""

from __future__ import annotations

import argparse
import json

from dresd.argument_types import any_number, some_path, whole_number
from dresd.command_line import UsageError
from retriever_service.commands.output import CommandError
from retriever_service.echo import echoed, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("datastore", type=some_path, metavar="DIR", help="a build's folder, or a root of builds")
    parser.add_argument(
        "--recall", type=any_number, default=0.95, metavar="R", help="share of the nearest keys to find; default: 0.95"
    )
    parser.add_argument(
        "--neighbors", type=whole_number, default=50, metavar="K", help="of so many nearest keys, 1 to 64; default: 50"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measures, writes the choice into the manifest, and prints it."""
    from retriever_service.datastore import MAX_RECALL_NEIGHBORS, DatastoreError, current_build, tune

    path, recall, neighbors = arguments.datastore, arguments.recall, arguments.neighbors
    if not 0.0 < recall <= 1.0:
        raise UsageError(f"--recall is {recall:g}, but must be above 0 and at most 1.")
    if not 1 <= neighbors <= MAX_RECALL_NEIGHBORS:
        raise UsageError(f"--neighbors is {neighbors}, but must lie in 1..{MAX_RECALL_NEIGHBORS}.")
    try:
        path = current_build(path)
        manifest = tune(path, recall=recall, neighbors=neighbors)
    except DatastoreError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"The manifest of {echoed(path)} cannot be written: {error.strerror}.") from error
    record = manifest.tuning
    if arguments.json:
        measured = record.model_dump() if record is not None else None
        print(json.dumps({"nprobe": manifest.nprobe, "tuning": measured}, indent=1))
    elif record is None:
        print(
            f"{printable(str(path))}: every token has one list, and all of it is searched; there is nothing to choose"
        )
    else:
        print(
            f"{printable(str(path))}: {manifest.nprobe} lists of a token searched, "
            f"recall@{record.neighbors} {record.recall:.4f} ± {record.standard_error:.4f} "
            f"on {record.held_out_keys:,} held-out keys ({record.every_list_recall:.4f} with every list)"
        )
    return 0
