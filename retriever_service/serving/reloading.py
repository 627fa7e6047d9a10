"""How a collection gets its builds: the first one at the start, another when there is one to be had.

A build that cannot be served changes nothing: the one before it goes on. Used from one event loop; what takes long is
done in threads. Knows folders and datastores; not who asks for a reload, nor what requests are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from retriever_service.datastore import (
    Datastore,
    DatastoreError,
    Mark,
    current_build,
    current_mark,
    other_keys,
    read_manifest,
)
from retriever_service.echo import echoed
from retriever_service.serving.background import in_thread
from retriever_service.serving.collection import Collection
from retriever_service.serving.config import Limits
from retriever_service.serving.errors import ServeError
from retriever_service.serving.loaded_build import LoadedBuild

logger = logging.getLogger(__name__)


class ReloadError(Exception):
    """A build was not taken up; one sentence says why. What was served still is."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The build served now, and the one before: the same where nothing else was to be loaded."""

    build_id: str
    previous_build_id: str


class Reloader:
    """Loads the builds of one collection.

    Args:
        collection: gets them.
        folder: of a build, or a root whose `CURRENT` names one.
        open_datastore: opens a build's folder; called in a thread of its own.
        limits: of requests to the collection.
        follow: told the collection's name and each datastore that is about to become its current one, also one that
            was so before; called in a thread, and may refuse it as `open_datastore` may.

    Attributes:
        collection: as given.
        folder: the same with its full name, because whoever reads of it may be somewhere else.
        last_error: why the latest reload was refused; "" if it was not.
    """

    def __init__(
        self,
        collection: Collection,
        folder: Path,
        open_datastore: Callable[[Path], Datastore],
        limits: Limits,
        follow: Callable[[str, Datastore], None] | None = None,
    ) -> None:
        self.collection = collection
        self.folder = _full_name(folder)
        self.last_error = ""
        self._open_datastore = open_datastore
        self._limits = limits
        self._follow = follow
        self._one_at_a_time = asyncio.Lock()
        self._seen: Mark = None
        self._reloads: set[asyncio.Task[Reloaded | str]] = set()

    async def load(self) -> None:
        """Loads the first build.

        Raises:
            DatastoreError: it cannot be served.
            ServeError: it cannot be read.
        """
        try:
            self._seen = await in_thread(lambda: current_mark(self.folder))
            build = await in_thread(lambda: self._opened(current_build(self.folder)))
        except OSError as error:
            raise ServeError(f"cannot read the datastore {echoed(self.folder)}: {error.strerror or error}") from error
        self._adopt(build)

    async def reload(self, *, allow_other_model: bool = False) -> Reloaded:
        """Takes up the build that the folder now leads to, if it is another one; goes on if the caller is cancelled.

        Raises:
            ReloadError: it cannot be served, or not to those who are served now.
        """
        outcome = await asyncio.shield(self._begun(allow_other_model=allow_other_model))
        if isinstance(outcome, str):
            raise ReloadError(outcome)
        return outcome

    async def watch(self, interval_s: float) -> None:
        """Reloads whenever `CURRENT` is replaced; a refused build is tried again when it is replaced once more.

        A fault of our own is logged and ends nothing: a server that looked no more would serve old builds for ever.
        """
        while True:
            await asyncio.sleep(interval_s)
            mark = await in_thread(lambda: current_mark(self.folder))
            if mark != self._seen:
                await self._reload_whatever_comes()

    async def _reload_whatever_comes(self) -> None:
        # Leaves nothing behind: an exception's traceback would keep builds loaded.
        task = self._begun(allow_other_model=False)
        await asyncio.wait({task})
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("a reload failed", exc_info=fault, extra={"fields": {"collection": self.collection.name}})

    def _begun(self, *, allow_other_model: bool) -> asyncio.Task[Reloaded | str]:
        task = asyncio.create_task(self._reload(allow_other_model=allow_other_model))
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)
        return task

    def close(self) -> None:
        """Gives up what is being loaded."""
        for task in self._reloads:
            task.cancel()

    async def _reload(self, *, allow_other_model: bool) -> Reloaded | str:
        """What came of it, or why it was refused: not as an exception, whose traceback would keep builds loaded."""
        async with self._one_at_a_time:
            served = self.collection.current
            if served is None:
                return "the datastore is still being loaded; nothing can replace it yet"
            here = {build.build_id: build for build in self.collection.builds}
            try:
                self._seen = await in_thread(lambda: current_mark(self.folder))
                build = await in_thread(lambda: self._successor(here, None if allow_other_model else served))
            except (ReloadError, DatastoreError, OSError, RuntimeError, ValueError, LookupError, MemoryError) as error:
                self.last_error = str(error)
                logger.warning(
                    "another build was refused: %s",
                    echoed(error, 1000),
                    extra={"fields": {"collection": self.collection.name, "build": served.build_id}},
                )
                return self.last_error
            self.last_error = ""
            if build is not served:
                self._adopt(build)
            return Reloaded(build.build_id, served.build_id)

    def _successor(self, here: dict[str, LoadedBuild], served: LoadedBuild | None) -> LoadedBuild:
        """The build to serve next, one that is loaded already among them; fit to follow `served`, if that is given."""
        folder = current_build(self.folder)
        manifest = read_manifest(folder)
        loaded = here.get(manifest.build_id)
        if loaded is not None and loaded.datastore.manifest == manifest:  # `tune` writes another one for the same build
            return self._followed(loaded)
        if served is not None and (differ := other_keys(served.datastore.manifest, manifest)):
            raise ReloadError(
                f"{folder} holds drafts for other decoders than those served now; served against new: "
                f"{'; '.join(differ)}. Serve it as a collection of its own, or reload allowing another model"
            )
        return self._opened(folder)

    def _opened(self, folder: Path) -> LoadedBuild:
        return self._followed(LoadedBuild(self._open_datastore(folder), self._limits))

    def _followed(self, build: LoadedBuild) -> LoadedBuild:
        if self._follow is not None:
            self._follow(self.collection.name, build.datastore)
        return build

    def _adopt(self, build: LoadedBuild) -> None:
        self.collection.adopt(build)
        fields = {
            "collection": self.collection.name,
            "build": build.build_id,
            "entries": build.datastore.num_entries,
            "partition_numbers": ",".join(map(str, build.datastore.served_partitions)),
            "of_partitions": len(build.datastore.manifest.partitions),
        }
        logger.info("serving", extra={"fields": fields})


def _full_name(folder: Path) -> Path:
    try:
        return folder.absolute()
    except FileNotFoundError:  # the folder that we are in is gone
        return folder
