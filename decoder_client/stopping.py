"""Stop strings: texts that end an answer when it contains one. Knows tokens and their text only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Tokens that may add no byte of their own (special tokens, parts of a character) at the end of an answer.
_SLACK = 8


class StopStrings:
    """Watches one answer grow."""

    def __init__(self, stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        """Ends an answer at the first of `stops`; `decode` gives the text of tokens.

        Raises:
            ValueError: a stop string is empty.
        """
        if not all(stops):
            raise ValueError("stop strings must not be empty")
        self._stops = tuple(stops)
        self._decode = decode
        self._tokens: list[int] = []
        # Every other token holds at least one byte of text, so a stop string ends within so many tokens.
        self._window = max((len(stop.encode()) for stop in stops), default=0) + _SLACK
        self.stopped = False

    def add(self, token: int) -> bool:
        """Takes the answer's next token; True when a stop string is complete."""
        if self._stops:
            self._tokens.append(token)
            tail = self._decode(self._tokens[-self._window :])
            self.stopped = any(stop in tail for stop in self._stops)
        return self.stopped

    def cut(self, text: str) -> str:
        """The answer's text up to its first stop string."""
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        return text[: min(found)] if self.stopped and found else text
