"""dresd-retriever k8s-values: what a datastore needs on Kubernetes, as a kustomize component or as a table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dresd.argument_types import at_least, between, numbers_between, some_path
from dresd.command_line import UsageError
from retriever_service.commands.output import CommandError, check_outside_datastores, human_bytes
from retriever_service.echo import printable

if TYPE_CHECKING:
    from retriever_service.datastore.sizing import Sizes

_MOST_ENTRIES = 10**15
_MOST_PARTITIONS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("datastore", type=some_path, metavar="DIR", help="a build's folder, or a root of builds")
    parser.add_argument(
        "--replicas", type=between(int, 1, 64), default=2, metavar="R", help="servers for each partition; default: 2"
    )
    parser.add_argument(
        "--most-replicas", type=between(int, 1, 64), metavar="R", help="under load; default: twice --replicas"
    )
    parser.add_argument("--cpus", type=at_least(int, 1), default=2, metavar="N", help="cores of a server; default: 2")
    parser.add_argument(
        "--entries", type=numbers_between(1, _MOST_ENTRIES), metavar="N,M",
        help="as if it had so many; several make a table; default: as many as it has",
    )  # fmt: skip
    parser.add_argument(
        "--partitions", type=between(int, 1, _MOST_PARTITIONS), metavar="P",
        help="as if it were in so many; default: with --entries as few as fit 32 GiB a server, else as it is",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=some_path, metavar="FOLDER", help="write a kustomize component there; default: print a table"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints or writes what is needed."""
    if arguments.out is not None and arguments.entries is not None and len(arguments.entries) > 1:
        raise UsageError("--out writes one component; give --entries one number.")
    most = arguments.most_replicas or 2 * arguments.replicas
    if most < arguments.replicas:
        raise UsageError("--most-replicas is less than --replicas; give it as many at least.")
    from retriever_service.commands.k8s_component import component
    from retriever_service.datastore import DatastoreError, current_build, read_manifest
    from retriever_service.datastore.sizing import Sizes

    try:
        sizes = Sizes.of(read_manifest(current_build(arguments.datastore)))
    except DatastoreError as error:
        raise CommandError(str(error)) from error
    if arguments.entries is not None:
        wanted = [sizes.scaled(entries, arguments.partitions) for entries in arguments.entries]
    else:
        wanted = [sizes if arguments.partitions is None else sizes.scaled(sizes.entries, arguments.partitions)]
    if arguments.out is None:
        print("\n".join(_table(wanted, arguments.replicas)))
        return 0
    files = component(wanted[0], replicas=arguments.replicas, most_replicas=most, cpus=arguments.cpus)
    _write(arguments.out, files)
    print(f"{printable(str(arguments.out))} has {', '.join(sorted(files))}; name it under `components:` of an overlay")
    return 0


def _write(folder: Path, files: dict[str, str]) -> None:
    from retriever_service.datastore.files import replacing

    check_outside_datastores(folder / "component", "--out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with replacing(folder / name) as beside:
                beside.write_text(text, "utf-8")
    except OSError as error:
        raise CommandError(
            f"{printable(str(error.filename or folder))} cannot be written: {error.strerror}. Name another folder."
        ) from error


def _table(wanted: list[Sizes], replicas: int) -> list[str]:
    from retriever_service.datastore.sizing import needs

    lines = [
        "| entries | partitions | servers | memory of a server | at most | of all | disk of a server | of all |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for sizes in wanted:
        of = needs(sizes, replicas)
        numbers = [of.memory_request, of.memory_limit, of.servers * of.memory_request, of.disk, of.servers * of.disk]
        cells = [f"{sizes.entries:,}", f"{sizes.partitions:,}", f"{of.servers:,}", *map(human_bytes, numbers)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
