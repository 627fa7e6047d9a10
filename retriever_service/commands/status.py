"""dresd-retriever status: what a running server serves."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from dresd.argument_types import server_address
from retriever_service.commands.output import human_bytes
from retriever_service.echo import printable

if TYPE_CHECKING:
    from dresd.v1 import admin_pb2 as pb

_TIMEOUT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("address", type=server_address, metavar="HOST:PORT", help="the server's --admin-listen")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints collections, their builds and what they do."""
    from dresd.v1 import admin_pb2 as pb
    from retriever_service.commands.admin_call import admin_of

    with admin_of(arguments.address) as (admin, metadata):
        status = admin.GetStatus(pb.GetStatusRequest(), timeout=_TIMEOUT_S, metadata=metadata)
    if arguments.json:
        print(json.dumps(_as_object(status), indent=1))
    else:
        print("\n".join(map(printable, _lines(status))))
    return 0


def _as_object(status: pb.GetStatusResponse) -> dict[str, object]:
    return {
        "service_version": status.service_version,
        "collections": [
            {
                "name": collection.name,
                "folder": collection.folder,
                "builds": [
                    {
                        "build_id": build.build_id,
                        "current": number == 0,
                        "folder": build.folder,
                        "loaded_at": _time(build.loaded_at_us),
                        "num_entries": build.num_entries,
                        "mapped_bytes": build.mapped_bytes,
                        "in_flight": build.in_flight,
                    }
                    for number, build in enumerate(collection.builds)
                ],
                "last_reload_error": collection.last_reload_error,
            }
            for collection in status.collections
        ],
    }


def _lines(status: pb.GetStatusResponse) -> Iterator[str]:
    for collection in status.collections:
        yield f"{collection.name}: {collection.folder}"
        for number, build in enumerate(collection.builds):
            yield (
                f"  {'current' if number == 0 else 'leaving'}  {build.build_id}: {build.num_entries:,} entries, "
                f"{human_bytes(build.mapped_bytes)} mapped, {build.in_flight} in flight, "
                f"since {_time(build.loaded_at_us)}, {build.folder}"
            )
        if not collection.builds:
            yield "  loading"
        if collection.last_reload_error:
            yield f"  refused  {collection.last_reload_error}"


def _time(microseconds: int) -> str:
    try:
        return datetime.fromtimestamp(microseconds // 1_000_000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
