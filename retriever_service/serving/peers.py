"""The other servers of the same service, as they come and go. Used from one event loop; knows no requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from dresd.addresses import AddressError, Discovery
from dresd.peer_access import PeerAccess
from retriever_service.echo import echoed
from retriever_service.serving.background import in_thread
from retriever_service.serving.peer_link import PeerLink

logger = logging.getLogger(__name__)

_RESOLVE_S = 5.0
_LEAST_PAUSE_S = 0.2


class Peers:
    """Finds and keeps them from the start until closed.

    Args:
        discovery: their addresses; this server's own among them does no harm, because it owns nothing that it lacks.
        access: what they are shown.
        collections: names of those that they may be asked for.
    """

    def __init__(self, discovery: Discovery, access: PeerAccess, collections: Sequence[str]) -> None:
        self._discovery = discovery
        self._access = access
        self._collections = collections
        self._links: dict[str, PeerLink] = {}
        self._missed = asyncio.Event()  # nobody owned what was asked for
        self._task = asyncio.create_task(self._keep_resolving())

    def owners(self, collection: str, build_id: str, partition: int) -> list[PeerLink]:
        """Those that can be asked for this now, the least busy first."""
        owners = [link for link in self._links.values() if link.owns(collection, build_id, partition)]
        if not owners:
            self._missed.set()
            for link in self._links.values():
                link.learn()
        return sorted(owners, key=lambda link: link.outstanding)

    @property
    def states(self) -> dict[str, bool]:
        """Whether each of them is asked now, by address; read from any thread."""
        return {address: link.is_asked for address, link in list(self._links.items())}

    async def close(self) -> None:
        """Ends all connections."""
        self._task.cancel()
        await asyncio.wait({self._task})
        await asyncio.gather(*(link.close() for link in self._links.values()))

    async def _keep_resolving(self) -> None:
        trouble = ""
        while True:
            try:
                addresses = await in_thread(self._discovery.addresses)
            except AddressError as error:
                if str(error) != trouble:
                    logger.warning("going on with the peers known so far: %s", echoed(error))
                trouble = str(error)
            else:
                trouble = ""
                await self._connect(addresses)
            self._missed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._missed.wait(), _RESOLVE_S)
            await asyncio.sleep(_LEAST_PAUSE_S)

    async def _connect(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            if address not in self._links:
                self._links[address] = PeerLink(address, self._access, self._collections)
        gone = [self._links.pop(address) for address in list(self._links) if address not in addresses]
        await asyncio.gather(*(link.close() for link in gone))
