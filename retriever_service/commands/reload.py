"""dresd-retriever reload: makes a running server take up the build that is published now."""

from __future__ import annotations

import argparse

from dresd.argument_types import at_least, non_empty, server_address


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("address", type=server_address, metavar="HOST:PORT", help="the server's --admin-listen")
    parser.add_argument(
        "--collection", type=non_empty, metavar="NAME", help="which datastore; default: its default one"
    )
    parser.add_argument(
        "--allow-other-model", action="store_true", help="take up a build of another model than the one served"
    )
    parser.add_argument(
        "--timeout",
        type=at_least(float, 0.1),
        default=600.0,
        metavar="S",
        help="longest wait for it to be loaded; default: 600",
    )


def run(arguments: argparse.Namespace) -> int:
    """Waits for the swap and says what is served."""
    from dresd.v1 import admin_pb2 as pb
    from retriever_service.commands.admin_call import admin_of
    from retriever_service.echo import printable

    request = pb.ReloadRequest(collection=arguments.collection or "", allow_other_model=arguments.allow_other_model)
    with admin_of(arguments.address) as (admin, metadata):
        reloaded = admin.Reload(request, timeout=arguments.timeout, metadata=metadata)
    before, now = printable(reloaded.previous_build_id), printable(reloaded.build_id)
    print(f"serving build {now} still" if now == before else f"serving build {now} in place of {before}")
    return 0
