"""dresd-retriever fetch: brings what is published in object storage to this machine, once or as often as it changes."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dresd.argument_types import at_least, between, non_empty, numbers_between, some_path
from dresd.command_line import UsageError
from retriever_service.commands.output import CommandError, human_bytes
from retriever_service.echo import printable

if TYPE_CHECKING:
    from retriever_service.datastore.fetching import Choice

_HIGHEST = 2**32 - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("url", type=non_empty, metavar="URL", help="of a root that `push` filled")
    parser.add_argument("root", type=some_path, metavar="DIR", help="of this machine, to be served; made if need be")
    parser.add_argument(
        "--partitions", type=numbers_between(0, _HIGHEST), metavar="N,M", help="the partitions to copy; default: all"
    )
    parser.add_argument(
        "--ordinal", type=between(int, 0, _HIGHEST), metavar="N",
        help="in place of --partitions: those that `serve --ordinal N` serves",
    )  # fmt: skip
    parser.add_argument(
        "--every", type=between(float, 0.01, 1e6), metavar="S",
        help="stay, and look every S seconds whether something else was published; default: once",
    )  # fmt: skip
    parser.add_argument(
        "--keep", type=at_least(int, 1), default=2, metavar="N", help="fetched builds that stay in DIR; default: 2"
    )
    parser.add_argument(
        "--metrics-listen", metavar="HOST:PORT", help="with --every: numbers for Prometheus, over HTTP; default: none"
    )


def run(arguments: argparse.Namespace) -> int:
    """Fetches; with --every until told to stop, going on after failures."""
    if arguments.partitions is not None and arguments.ordinal is not None:
        raise UsageError("--ordinal and --partitions both choose what to fetch; give one of them.")
    if arguments.metrics_listen is not None and arguments.every is None:
        raise UsageError("--metrics-listen shows what a fetch that stays does; say how often it looks with --every.")
    from retriever_service.datastore import DatastoreError
    from retriever_service.serving.errors import ServeError

    try:
        if arguments.every is None:
            _fetch(arguments)
        else:
            _follow(arguments)
    except (DatastoreError, ServeError) as error:
        raise CommandError(str(error)) from error
    return 0


def _follow(arguments: argparse.Namespace) -> NoReturn:
    from prometheus_client import Counter, Gauge

    from retriever_service.datastore import CURRENT_FILE, DatastoreError
    from retriever_service.datastore.remote import RemoteFolder
    from retriever_service.serving.metrics import MetricsPort

    remote, seen = RemoteFolder(arguments.url), None
    failures = Counter("dresd_fetch_failures", "Looks that failed", registry=None)
    success = Gauge("dresd_fetch_success_timestamp_seconds", "When what is published was here last", registry=None)
    if arguments.metrics_listen is not None:
        port = MetricsPort(arguments.metrics_listen, (failures, success)).port
        print(f"dresd-retriever fetch shows metrics on port {port}", flush=True)
    while True:
        try:
            mark = remote.mark_of(CURRENT_FILE)
            if mark is None or mark != seen:
                _fetch(arguments)
                seen = mark
            success.set_to_current_time()
        except DatastoreError as error:
            failures.inc()
            print(f"warning: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        time.sleep(arguments.every)


def _fetch(arguments: argparse.Namespace) -> None:
    from retriever_service.datastore.fetching import fetch

    root: Path = arguments.root
    done = fetch(arguments.url, root, _choice(arguments), keep=arguments.keep)
    share = ",".join(map(str, done.partitions))
    print(
        f"{printable(str(done.folder))} is current: build {done.manifest.build_id}, partitions {share} of "
        f"{len(done.manifest.partitions)}; copied {done.files} files, {human_bytes(done.bytes)}",
        flush=True,
    )


def _choice(arguments: argparse.Namespace) -> Choice:
    from retriever_service.datastore.fetching import every_partition

    if arguments.ordinal is not None:
        ordinal: int = arguments.ordinal
        return lambda manifest: manifest.partitions_of(ordinal)
    if arguments.partitions is not None:
        partitions: tuple[int, ...] = arguments.partitions
        return lambda _: partitions
    return every_partition
