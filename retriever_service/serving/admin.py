"""The Admin service: reloads and status. Knows its contract, collections and how they reload; answers no queries."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

import grpc
from google.protobuf.json_format import MessageToJson, Parse

from dresd.v1 import admin_pb2 as pb
from dresd.v1 import admin_pb2_grpc as pb_grpc
from retriever_service.echo import printable
from retriever_service.serving.collection import Collections
from retriever_service.serving.crew import Crew
from retriever_service.serving.loaded_build import LoadedBuild
from retriever_service.serving.refusals import abort, message_of
from retriever_service.serving.reloading import Reloaded, Reloader, ReloadError
from retriever_service.serving.validation import RefusedError

if TYPE_CHECKING:
    from retriever_service.serving.refusals import Context


_RELOAD, _STATUS = "reload", "status"
_RELOAD_S, _STATUS_S = 600.0, 2.0
"""Longest wait for the other workers."""


class AdminService(pb_grpc.AdminServicer):
    """What an operator asks for.

    Args:
        collections: all that are served.
        reloaders: one for each of them, in the order of their names.
        crew: the other workers, where this is one of several: what is asked of one is asked of all.
    """

    def __init__(self, collections: Collections, reloaders: Sequence[Reloader], crew: Crew | None = None) -> None:
        self._collections = collections
        self._crew = crew
        if crew is not None:
            crew.on(_RELOAD, self._reload_for_another)
            crew.on(_STATUS, self._status_for_another)
        self._reloaders = {reloader.collection.name: reloader for reloader in reloaders}

    async def Reload(self, request: pb.ReloadRequest | None, context: Context) -> pb.ReloadResponse:  # noqa: N802
        """Loads and swaps in the build that a collection's folder now leads to."""
        try:
            message = message_of(request)
            reloaded = await self._reload(message)
            await self._reload_others(message)
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
        status = self._status()
        if self._crew is not None:
            for _, answer in await self._crew.ask(_STATUS, "", _STATUS_S):
                _add(status, Parse(answer, pb.GetStatusResponse()))
        return status

    async def _reload(self, message: pb.ReloadRequest) -> Reloaded:
        reloader = self._reloaders[self._collections.find(message.collection).name]
        return await reloader.reload(allow_other_model=message.allow_other_model)

    async def _reload_others(self, message: pb.ReloadRequest) -> None:
        if self._crew is not None:
            for number, refusal in await self._crew.ask(_RELOAD, MessageToJson(message), _RELOAD_S):
                if refusal:
                    raise ReloadError(f"worker {number}: {refusal}")

    async def _reload_for_another(self, request: str) -> str:
        """Why it was refused, "" where it was not."""
        try:
            await self._reload(Parse(request, pb.ReloadRequest()))
        except (RefusedError, ReloadError) as error:
            return str(error)
        return ""

    async def _status_for_another(self, _: str) -> str:
        return MessageToJson(self._status())

    def _status(self) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(
            service_version=version("dresd"), collections=map(_collection_status, self._reloaders.values())
        )


def _add(status: pb.GetStatusResponse, other: pb.GetStatusResponse) -> None:
    """Adds another worker's: requests of the same build are summed, its files are the same."""
    for mine, theirs in zip(status.collections, other.collections, strict=True):
        builds = {build.build_id: build for build in mine.builds}
        for build in theirs.builds:
            if build.build_id in builds:
                builds[build.build_id].in_flight += build.in_flight
            else:
                mine.builds.append(build)
        mine.last_reload_error = mine.last_reload_error or theirs.last_reload_error


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
