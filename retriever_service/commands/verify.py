"""dresd-retriever verify: every byte, count and order of a datastore checked again."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from dresd.argument_types import at_least, some_path
from retriever_service.commands.output import CommandError, human_bytes
from retriever_service.echo import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("datastore", type=some_path, metavar="DIR", help="a build's folder, or a root of builds")
    parser.add_argument(
        "--sample", type=at_least(int, 0), default=1000, metavar="N", help="keys searched for; default: 1000"
    )
    parser.add_argument("--seed", type=at_least(int, 0), default=0, metavar="N", help="of the sample; default: 0")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints what was checked; fails naming every file that is not what the build wrote."""
    from retriever_service.datastore import DatastoreError, current_build, verify

    try:
        report = verify(current_build(arguments.datastore), sample=arguments.sample, seed=arguments.seed)
    except DatastoreError as error:
        raise CommandError(str(error)) from error
    if arguments.json:
        print(json.dumps(asdict(report), indent=1))
    else:
        found = "no keys were searched"
        if report.self_recall is not None:
            found = f"{report.self_recall:.1%} of {report.sampled:,} sampled keys found themselves"
        partitions = "1 partition" if report.partitions == 1 else f"{report.partitions} partitions"
        print(
            f"{printable(report.path)}: {report.files} files ({human_bytes(report.bytes)}) and "
            f"{report.entries:,} entries in {partitions} are as they were built; {found}"
        )
        print("".join(f"note: {note}\n" for note in report.notes), end="")
    return 0
