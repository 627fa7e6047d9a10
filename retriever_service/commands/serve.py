"""dresd-retriever serve: answers decoders from a datastore, over gRPC."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dresd.argument_types import any_number, numbers_between, some_path, whole_number
from dresd.command_line import UsageError
from retriever_service.commands import serve_learning, serve_operations
from retriever_service.echo import quoted

_PLAIN = (
    "listen", "admin_listen", "health_listen", "partitions", "ordinal", "peers", "workers", "search_threads",
    "queue_size",
)  # fmt: skip
_HIGHEST = 2**32 - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "datastore", type=some_path, nargs="?", metavar="DIR",
        help="a folder that `build` made, or a root of builds, one of them published",
    )  # fmt: skip
    parser.add_argument(
        "--collection", type=_collection, action="append", default=[], metavar="NAME=DIR",
        help="serve this datastore under a name, too; repeatable",
    )  # fmt: skip
    parser.add_argument("--listen", metavar="HOST:PORT", help="port 0 is any free one; default: 127.0.0.1:50051")
    parser.add_argument(
        "--partitions",
        type=numbers_between(0, _HIGHEST),
        metavar="N,M",
        help="the partitions to serve, by number; default: all",
    )
    parser.add_argument(
        "--ordinal", type=whole_number, metavar="N",
        help="in place of --partitions: this server's number among many, from 0; of P partitions it serves that of its "
        "number modulo P",
    )  # fmt: skip
    parser.add_argument(
        "--peers", metavar="LIST",
        help="the other servers, which other partitions are asked for: HOST:PORT,HOST:PORT or dns:///NAME:PORT or "
        "file:PATH; default: none",
    )  # fmt: skip
    parser.add_argument("--workers", type=whole_number, metavar="N", help="processes that share the port; default: 1")
    parser.add_argument(
        "--search-threads", type=whole_number, metavar="N",
        help="searches at the same time, in each worker; default: one a core, over all workers",
    )  # fmt: skip
    parser.add_argument("--queue-size", type=whole_number, metavar="N", help="searches that may wait; default: 64")
    parser.add_argument(
        "--reload-interval", type=any_number, metavar="S",
        help="seconds between looks for a new build; 0: never; default: 5",
    )  # fmt: skip
    parser.add_argument(
        "--build-grace", type=any_number, metavar="S",
        help="seconds that a build goes on answering after a new one has replaced it; default: 60",
    )  # fmt: skip
    parser.add_argument(
        "--admin-listen", metavar="HOST:PORT", help="where `reload` and `status` ask; keep it private; default: nowhere"
    )
    parser.add_argument(
        "--health-listen", metavar="HOST:PORT",
        help="where health alone is told too, in plain text and without a token, for probes that have neither; "
        "default: nowhere",
    )  # fmt: skip
    parser.add_argument("--skip-checksums", action="store_true", help="do not hash every file before serving")
    serve_operations.add_arguments(parser)
    serve_learning.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serves until told to stop."""
    collections = dict(arguments.collection)
    if len(collections) < len(arguments.collection):
        raise UsageError("--collection: two datastores have the same name. Give each a name of its own.")
    if arguments.datastore is None and not collections:
        raise UsageError("No datastore was named. Give its folder, or --collection NAME=DIR for each of several.")
    from retriever_service.serving.config import ServeConfig
    from retriever_service.serving.errors import ServeError
    from retriever_service.serving.server import run as run_server

    names = {"reload_interval": "reload_interval_s", "build_grace": "build_grace_s"}
    chosen = {
        names.get(name, name): value for name in (*_PLAIN, *names) if (value := getattr(arguments, name)) is not None
    }
    if "search_threads" not in chosen and chosen.get("workers", 1) > 1:
        chosen["search_threads"] = max(1, (os.cpu_count() or 1) // chosen["workers"])
    try:
        config = ServeConfig(
            arguments.datastore,
            collections,
            verify_checksums=not arguments.skip_checksums,
            access=serve_operations.access(arguments),
            admin_token_file=serve_operations.admin_token_file(arguments),
            connections=serve_operations.connections(arguments),
            metrics_listen=arguments.metrics_listen,
            traces=arguments.traces,
            log_format=arguments.log_format,
            learning=serve_learning.learning(arguments),
            **chosen,
        )
    except ServeError as error:
        raise UsageError(str(error)) from error
    return run_server(config)


def _collection(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not equals or not folder:
        raise argparse.ArgumentTypeError(f"a name and a folder with = between them are expected, not {quoted(text)}")
    return name, Path(folder)
