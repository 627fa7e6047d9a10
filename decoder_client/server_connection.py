"""One server of a service: connected, or left alone and asked again, by a thread of its own.

After trouble the thread shakes hands again, at growing intervals, outside the decode path. Knows one address; nothing
of other servers, of routing or of what is asked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from decoder_client.handshake import Handshake, shake_hands
from decoder_client.retrieve_link import RetrieveLink
from decoder_client.retriever_config import RetrieverConfig
from decoder_client.retriever_errors import RetrieverError, RetrieverMismatchError
from decoder_client.retriever_stats import CallRecorder
from dresd.breaker import Breaker
from dresd.identity import ModelIdentity

logger = logging.getLogger(__name__)

_JOIN_S = 2.0
_SAME_COMPLAINT_S = 60.0
_MAX_OLDER = 2
"""Builds remembered beside a server's current one."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A server that can be asked.

    Attributes:
        link: by which.
        handshake: of its current build.
        older: of builds that it has replaced, the latest first; for a grace period it answers for them, too.
    """

    link: RetrieveLink
    handshake: Handshake
    older: tuple[Handshake, ...] = ()


class ServerConnection:
    """Keeps itself connected to one server from the start until it is closed. Methods may be called from any thread.

    Args:
        address: of the server.
        config: of the client.
        identity: the decoder's target model.
        recorder: notes reconnections.
        known: an earlier handshake of the client, whose reducer and table need not be fetched again.
        on_change: called, without locks held, whenever `connected` has changed and after every failed dial.
    """

    def __init__(
        self,
        address: str,
        config: RetrieverConfig,
        identity: ModelIdentity,
        recorder: CallRecorder,
        known: Callable[[], Handshake | None],
        on_change: Callable[[], None],
    ) -> None:
        self.address = address
        self._config = config
        self._identity = identity
        self._recorder = recorder
        self._known = known
        self._on_change = on_change
        self._breaker = Breaker(config.failure_threshold, config.retry_base_s, config.retry_max_s)
        # Guards everything below, and the breaker; notified when the breaker opens and on close.
        self._changed = threading.Condition()
        self._closed = False
        self._connected: Connected | None = None
        self._links: set[RetrieveLink] = set()  # all not closed yet: in use, dialling, given up
        self._announced = ""  # a build that the server has gone over to, and hands were not shaken for
        self._unusable = ""  # one that this decoder cannot use
        self._was_connected = False
        self._error: RetrieverError | None = None
        self._trouble = ""
        self._complained_s: dict[str, float] = {}
        self._keeper = threading.Thread(target=self._keep_connected, name="dresd-keeper", daemon=True)
        self._keeper.start()

    @property
    def connected(self) -> Connected | None:
        """What to ask; None while the server is left alone."""
        return self._connected

    @property
    def error(self) -> RetrieverError | None:
        """Of the latest dial, None if it went well or none has ended yet."""
        return self._error

    @property
    def trouble(self) -> str:
        """Why the server is left alone, for people; "" while it is being asked."""
        return self._trouble

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer of the server."""
        connected = self._connected
        return connected is None or connected.link.is_idle

    def succeeded(self) -> None:
        """The server answered."""
        with self._changed:
            self._breaker.success()

    def failed(self, link: RetrieveLink, reason: str, *, at_once: bool = False) -> None:
        """Counts a failure of `link`; leaves the server alone if there were enough of them."""
        with self._changed:
            if self._connected is None or link is not self._connected.link:
                return  # given up already
            if at_once:
                self._breaker.trip()
            else:
                self._breaker.failure()
            if not self._breaker.is_open:
                return
            self._connected = None
            self._trouble = reason
            self._changed.notify_all()
        self._complain(f"no drafts from the retriever at {self.address} for now: {reason}")
        self._on_change()

    def heard_of(self, link: RetrieveLink, build_id: str) -> None:
        """The server has gone over to this build: hands are shaken again, while it still answers for the one before."""
        with self._changed:
            connected = self._connected
            if connected is None or link is not connected.link or build_id == self._unusable:
                return
            if build_id != connected.handshake.build_id:
                self._announced = build_id
                self._changed.notify_all()

    def refused_build(self, link: RetrieveLink, build_id: str, reason: str) -> None:
        """The server no longer answers for this build."""
        with self._changed:
            connected = self._connected
            if connected is None or link is not connected.link:
                return
            is_current = build_id == connected.handshake.build_id
            if not is_current:
                older = tuple(each for each in connected.older if each.build_id != build_id)
                self._connected = replace(connected, older=older)
        if is_current:
            self.failed(link, reason, at_once=True)
        else:
            self._on_change()

    def close(self) -> None:
        """Ends all calls and threads."""
        with self._changed:
            self._closed = True
            self._connected = None
            links, self._links = self._links, set()
            self._changed.notify_all()
        for link in links:
            link.close()

    def join(self) -> None:
        """Waits for the thread of a closed connection to end."""
        # An owner may be collected, and closes its client then, in any thread: in ours, too.
        if self._keeper is not threading.current_thread():
            self._keeper.join(_JOIN_S)

    def _keep_connected(self) -> None:
        while True:
            try:
                connected = self._dial()
            except RetrieverError as error:
                self._still_down(error)
            else:
                self._adopt(connected)
            self._on_change()
            while (outdated := self._with_news()) is not None:
                self._shake_hands_again(outdated)
            with self._changed:
                given_up = [] if self._closed else list(self._links)
                pause = self._breaker.pause_s()
            for link in given_up:
                self._discard(link)
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, pause):
                    return

    def _with_news(self) -> Connected | None:
        """Waits until the server announces another build; None where it is closed or left alone before that."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._connected is None or self._announced != "")
            return None if self._closed else self._connected

    def _shake_hands_again(self, outdated: Connected) -> None:
        """Goes over to the build that the server has announced; what is under way is not disturbed."""
        before = outdated.handshake
        try:
            handshake = self._shake_hands(outdated.link)
        except RetrieverError as error:
            with self._changed:
                if isinstance(error, RetrieverMismatchError):
                    self._unusable = self._announced
                self._complain(f"staying with build {before.build_id} as long as it is served: {error}")
                handshake = before
        with self._changed:
            self._announced = ""
            if self._connected is None or self._connected.link is not outdated.link:
                return
            if handshake.build_id == before.build_id:
                # Every answer announces it again, and this is not to be tried as often.
                self._changed.wait_for(lambda: self._closed or self._connected is None, self._config.retry_max_s)
                self._announced = ""
                return
            older = (each for each in (before, *self._connected.older) if each.build_id != handshake.build_id)
            self._connected = Connected(outdated.link, handshake, tuple(older)[:_MAX_OLDER])
        logger.info("the retriever at %s serves build %s now", self.address, handshake.build_id)
        self._on_change()

    def _still_down(self, error: RetrieverError) -> None:
        reason = str(error)
        with self._changed:
            # What is wrong at first is for whoever waits for the first dial.
            told = reason == self._trouble or self._closed or not (self._was_connected or self._error)
            self._error = error
            self._trouble = reason
            self._breaker.trip()
        if not told:
            self._complain(reason)

    def _complain(self, sentence: str) -> None:
        """Warns, but of the same trouble once a minute: a service at the edge of its deadline fails again and again."""
        now = time.monotonic()
        with self._changed:
            recent = self._complained_s.items()
            self._complained_s = {said: when for said, when in recent if now < when + _SAME_COMPLAINT_S}
            repeated = sentence in self._complained_s
            self._complained_s.setdefault(sentence, now)
        logger.log(logging.DEBUG if repeated else logging.WARNING, "%s", sentence)

    def _dial(self) -> Connected:
        config = self._config
        link = RetrieveLink(
            self.address, config.access, lambda broken, reason: self.failed(broken, reason, at_once=True)
        )
        with self._changed:
            if self._closed:
                link.close()
                raise RetrieverError("this retriever client is closed")
            self._links.add(link)
        try:
            handshake = self._shake_hands(link)
            link.open_stream()
        except RetrieverError:
            self._discard(link)
            raise
        return Connected(link, handshake)

    def _shake_hands(self, link: RetrieveLink) -> Handshake:
        return shake_hands(
            link.stub,
            self.address,
            self._identity,
            collection=self._config.collection,
            timeout_s=self._config.connect_timeout_s,
            require_same_weights=self._config.require_same_weights,
            known=self._known(),
        )

    def _adopt(self, connected: Connected) -> None:
        with self._changed:
            if self._closed:
                return  # close() has the link
            if self._was_connected:
                logger.info("the retriever at %s is back, build %s", self.address, connected.handshake.build_id)
                self._recorder.reconnected()
            self._connected, self._trouble, self._error, self._was_connected = connected, "", None, True
            self._announced = self._unusable = ""
            self._breaker.close()

    def _discard(self, link: RetrieveLink) -> None:
        with self._changed:
            self._links.discard(link)
        link.close()
