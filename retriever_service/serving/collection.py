"""Named datastores, each with a current build and perhaps older ones that still answer those who ask for them.

Used from one event loop. Knows which build answers what; not how builds are found or opened.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator

import grpc

from retriever_service.echo import echoed, quoted
from retriever_service.serving.config import DEFAULT_COLLECTION
from retriever_service.serving.loaded_build import LoadedBuild
from retriever_service.serving.validation import RefusedError

MAX_RETIRING = 4
"""Builds in their grace period; of more, published in quick succession, the oldest ends early."""


class Collection:
    """One named datastore.

    Args:
        name: of it.
        grace_s: seconds that a build goes on answering after another has become current.

    Attributes:
        name: as given.
    """

    def __init__(self, name: str, grace_s: float) -> None:
        self.name = name
        self._grace_s = grace_s
        self._current: LoadedBuild | None = None
        self._retiring: dict[str, tuple[LoadedBuild, asyncio.TimerHandle]] = {}

    @property
    def current(self) -> LoadedBuild | None:
        """What new callers get; None before the first build is loaded."""
        return self._current

    @property
    def builds(self) -> tuple[LoadedBuild, ...]:
        """All that answer: the current one, then the others, the latest first."""
        retiring = [build for build, _ in reversed(self._retiring.values())]
        return (*([] if self._current is None else [self._current]), *retiring)

    def build(self, build_id: str) -> LoadedBuild:
        """The build that answers a request which expects `build_id`; "" is the current one.

        Raises:
            RefusedError: UNAVAILABLE before the first build is loaded, FAILED_PRECONDITION for one that is not here.
        """
        current = self._current
        if current is None:
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, "the datastore is still being loaded")
        if build_id in ("", current.build_id):
            return current
        retiring = self._retiring.get(build_id)
        if retiring is None:
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"build_id: the request expects {quoted(build_id)} and this server serves "
                f"{quoted(current.build_id)}; shake hands again",
            )
        return retiring[0]

    def adopt(self, build: LoadedBuild) -> None:
        """Makes a build the current one, at once; what it replaces answers for the grace period and is then freed.

        The same build opened anew answers for the one opened before it, too.
        """
        replaced, self._current = self._current, build
        back = self._retiring.pop(build.build_id, None)
        if back is not None:
            back[1].cancel()
        if replaced is not None and replaced.build_id != build.build_id:
            timer = asyncio.get_running_loop().call_later(self._grace_s, self._retire, replaced.build_id)
            self._retiring[replaced.build_id] = (replaced, timer)
        while len(self._retiring) > MAX_RETIRING:
            oldest = next(iter(self._retiring))
            self._retiring[oldest][1].cancel()
            self._retire(oldest)

    def _retire(self, build_id: str) -> None:
        last = [self._retiring.pop(build_id)]
        # Unmapping many pages takes a while, and is not the event loop's work.
        threading.Thread(target=last.clear, name="dresd-unload", daemon=True).start()


class Collections:
    """All that one server serves, by name.

    Args:
        collections: at least one.
    """

    def __init__(self, collections: Iterable[Collection]) -> None:
        self._by_name = {collection.name: collection for collection in collections}
        only = next(iter(self._by_name.values())) if len(self._by_name) == 1 else None
        self._default = self._by_name.get(DEFAULT_COLLECTION, only)

    def __iter__(self) -> Iterator[Collection]:
        """In the order of their names."""
        return iter(sorted(self._by_name.values(), key=lambda collection: collection.name))

    def find(self, name: str) -> Collection:
        """The collection that a request names; "" is the default one, or the only one.

        Raises:
            RefusedError: NOT_FOUND, naming those that are served.
        """
        found = self._by_name.get(name) if name else self._default
        if found is None:
            asked = f"{quoted(name)} is not served here" if name else "none was named, and there is no default one"
            served = ", ".join(collection.name for collection in self)
            raise RefusedError(grpc.StatusCode.NOT_FOUND, f"collection: {asked}; served are: {echoed(served)}")
        return found
