"""What is kept of each request between steps: the drafter's session and the draft that the next pass verifies.

Knows request ids and texts; neither the engine nor how drafts are made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic

from decoder_client.drafting.drafter import Session
from decoder_client.engines.vllm.engine_step import RunningRequest
from dresd.draft_tree import DraftTree


@dataclass(slots=True)
class KnownRequest(Generic[Session]):
    """One request.

    Attributes:
        session: the drafter's.
        length: of its text as the session knows it; 0 before the session was told of it.
        last_token: of that text.
        draft: proposed at the latest step; empty if nothing was.
    """

    session: Session
    length: int
    last_token: int
    draft: DraftTree


class Sessions(Generic[Session]):
    """The requests of an engine, by the engine's names."""

    def __init__(self, start: Callable[[], Session]) -> None:
        """New requests get a session by `start`."""
        self._start = start
        self._known: dict[str, KnownRequest[Session]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def drop(self, gone: Collection[str]) -> None:
        """Forgets requests that ended, were aborted, or lost their cache; a name that is not known is no error."""
        for name in gone:
            self._known.pop(name, None)

    def keep_only(self, running: Collection[str]) -> None:
        """Forgets all but these; for engines that do not tell of every end."""
        self.drop([name for name in self._known if name not in running])

    def of(self, request: RunningRequest) -> KnownRequest[Session]:
        """The request's own; a new one if it is new, or if its text is not what it was (another request of its name,
        or one whose answer was cut back).
        """
        known = self._known.get(request.request_id)
        if known is None or not _goes_on(known, request):
            known = KnownRequest(self._start(), 0, -1, DraftTree.empty())
            self._known[request.request_id] = known
        return known

    def drafted_for(self, request: RunningRequest) -> bool:
        """Whether the latest step proposed a draft for it, from which there is something to learn."""
        known = self._known.get(request.request_id)
        return known is not None and len(known.draft) > 0


def _goes_on(known: KnownRequest[Session], request: RunningRequest) -> bool:
    if known.length == 0:
        return True
    old = len(request.text) - request.sampled
    return known.length <= old and request.text[known.length - 1] == known.last_token
