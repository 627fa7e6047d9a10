"""Which answers a decoder sends to be learned, checked when it is said. Knows numbers and the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from decoder_client.errors import SettingError

_SWITCH = {"": False, "0": False, "1": True}


@dataclass(frozen=True, slots=True)
class LearnConfig:
    """What is sent. Checks itself: SettingError names the field.

    Attributes:
        sample: share of the answers, 0 to 1, chosen at random.
        min_tokens: shorter answers are not sent.
        redact: sees an answer's text before it is sent, in another thread, and returns what may be kept: None drops the
            answer, and a text that differs cuts it where the difference begins. With it no token of the prompt is sent.
            An answer that it fails on is dropped.
        queue_size: answers that may wait to be sent; one more is dropped.
        timeout_s: the longest a server is waited for.
        token_file: the bearer token shown instead of the one that drafts are asked for with.
    """

    sample: float = 1.0
    min_tokens: int = 16
    redact: Callable[[str], str | None] | None = None
    queue_size: int = 256
    timeout_s: float = 5.0
    token_file: Path | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.sample <= 1.0:
            raise SettingError(f"sample must be 0 to 1, not {self.sample!r}.")
        for name in ("min_tokens", "queue_size"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be 1 or more, not {getattr(self, name)!r}.")
        if not 0.0 < self.timeout_s < float("inf"):
            raise SettingError(f"timeout_s must be above 0, not {self.timeout_s!r}.")


def learn_config(learn: bool | LearnConfig | None, environment: Mapping[str, str] | None = None) -> LearnConfig | None:  # noqa: FBT001 - as it is said to decoders
    """What `learn=` means: None is what DRESD_LEARN, DRESD_LEARN_SAMPLE and DRESD_LEARN_TOKEN_FILE say, which is off
    where they are not set.

    Raises:
        SettingError: a variable makes no sense; names it.
    """
    if isinstance(learn, LearnConfig):
        return learn
    said = os.environ if environment is None else environment
    wanted = _SWITCH.get(said.get("DRESD_LEARN", "")) if learn is None else learn
    if wanted is None:
        raise SettingError("DRESD_LEARN is neither 1 nor 0; set it to one of them, or not at all.")
    if not wanted:
        return None
    try:
        sample = float(said.get("DRESD_LEARN_SAMPLE") or 1.0)
    except ValueError:
        raise SettingError("DRESD_LEARN_SAMPLE is no number; it must be 0 to 1.") from None
    token_file = said.get("DRESD_LEARN_TOKEN_FILE")
    return LearnConfig(sample=sample, token_file=Path(token_file) if token_file else None)
