"""The default drafter, whose sessions are read once more when their answers are done.

The keys are those that it made to draft, so learning takes no further pass and no further reduction. Knows sessions;
not what becomes of an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from decoder_client.drafting import AnyDrafter, MixtureDrafter
from decoder_client.drafting.drafter import DraftRequest, Outcome
from decoder_client.drafting.mixture import MixtureSession
from dresd.draft_tree import DraftTree

if TYPE_CHECKING:
    from decoder_client.learning.sender import AnswerSender


class LearningDrafter:
    """Drafts as `drafter` does; sends the answers of each `listening` block by `sender`."""

    def __init__(self, drafter: MixtureDrafter, sender: AnswerSender) -> None:
        self._drafter = drafter
        self.sender = sender
        self._open: list[tuple[int, MixtureSession]] = []

    def start(self, prompt: Sequence[int]) -> MixtureSession:
        """See `Drafter`."""
        session = self._drafter.start(prompt)
        self._open.append((len(prompt), session))
        return session

    def propose(self, requests: Sequence[DraftRequest[MixtureSession]]) -> list[DraftTree]:
        """See `Drafter`."""
        return self._drafter.propose(requests)

    def observe(self, session: MixtureSession, outcome: Outcome) -> None:
        """See `Drafter`."""
        self._drafter.observe(session, outcome)

    def forget(self) -> None:
        """Sends nothing of the sessions started so far."""
        self._open.clear()

    def send(self) -> None:
        """The answers of the sessions started so far are done."""
        for prompt_length, session in self._open:
            if session.handshake is not None and self.sender.wants(session.index.length - prompt_length):
                self.sender.offer(session.index.finished(prompt_length), session.handshake.reducer.sha256)
        self._open.clear()


@contextmanager
def listening(drafter: AnyDrafter | LearningDrafter) -> Iterator[None]:
    """Sends the answers that are decoded in this block, if `drafter` learns; none of them where the block fails."""
    if not isinstance(drafter, LearningDrafter):
        yield
        return
    drafter.forget()
    try:
        yield
    except BaseException:
        drafter.forget()
        raise
    drafter.send()
