"""The Admin service: reloads and status. Knows its contract, collections and how they reload; answers no queries."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

import grpc

from dresd.v1 import admin_pb2 as pb
from dresd.v1 import admin_pb2_grpc as pb_grpc
from retriever_service.echo import printable
from retriever_service.serving.collection import Collections
from retriever_service.serving.loaded_build import LoadedBuild
from retriever_service.serving.refusals import abort, message_of
from retriever_service.serving.reloading import Reloader, ReloadError
from retriever_service.serving.validation import RefusedError

if TYPE_CHECKING:
    from retriever_service.serving.refusals import Context


class AdminService(pb_grpc.AdminServicer):
    """What an operator asks for.

    Args:
        collections: all that are served.
        reloaders: one for each of them, in the order of their names.
    """

    def __init__(self, collections: Collections, reloaders: Sequence[Reloader]) -> None:
        self._collections = collections
        self._reloaders = {reloader.collection.name: reloader for reloader in reloaders}

    async def Reload(self, request: pb.ReloadRequest | None, context: Context) -> pb.ReloadResponse:  # noqa: N802
        """Loads and swaps in the build that a collection's folder now leads to."""
        try:
            message = message_of(request)
            reloader = self._reloaders[self._collections.find(message.collection).name]
            reloaded = await reloader.reload(allow_other_model=message.allow_other_model)
        except RefusedError as refused:
            await abort(context, refused)
        except ReloadError as error:
            await abort(context, RefusedError(grpc.StatusCode.FAILED_PRECONDITION, printable(str(error))))
        return pb.ReloadResponse(build_id=reloaded.build_id, previous_build_id=reloaded.previous_build_id)

    async def GetStatus(  # noqa: N802
        self,
        request: pb.GetStatusRequest | None,
        context: Context,
    ) -> pb.GetStatusResponse:
        """What is served now."""
        try:
            message_of(request)
        except RefusedError as refused:
            await abort(context, refused)
        return pb.GetStatusResponse(
            service_version=version("dresd"), collections=map(_collection_status, self._reloaders.values())
        )


def _collection_status(reloader: Reloader) -> pb.CollectionStatus:
    return pb.CollectionStatus(
        name=reloader.collection.name,
        folder=printable(str(reloader.folder)),
        builds=map(_build_status, reloader.collection.builds),
        last_reload_error=printable(reloader.last_error),
    )


def _build_status(build: LoadedBuild) -> pb.BuildStatus:
    return pb.BuildStatus(
        build_id=build.build_id,
        folder=printable(str(build.folder)),
        loaded_at_us=build.loaded_at_us,
        num_entries=build.datastore.num_entries,
        mapped_bytes=build.datastore.mapped_bytes,
        in_flight=build.in_flight,
    )
