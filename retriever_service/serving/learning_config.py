"""How a server learns, as an operator says it. Knows numbers and a folder's name only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from retriever_service.learning import LearningLimits
from retriever_service.serving.errors import ServeError

_MAX_RATE = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LearningConfig:
    """Where and how much.

    Attributes:
        folder: where answers are kept, a folder in it for each collection and reducer; made if it is not there.
        max_rate: entries a second that one writer may send, over ten seconds.
        max_entries: of each collection; when there are more, the oldest go.
        limits: the same, checked.

    Raises:
        ServeError: a value is out of range.
    """

    folder: Path
    max_rate: int = 20_000
    max_entries: int = 200_000
    limits: LearningLimits = field(init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.max_rate <= _MAX_RATE:
            raise ServeError(f"the rate of a writer is {self.max_rate}; it must be 1 to {_MAX_RATE} entries a second")
        try:
            object.__setattr__(self, "limits", LearningLimits(max_entries=self.max_entries))
        except ValueError as error:
            raise ServeError(str(error)) from error
