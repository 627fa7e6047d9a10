"""An answer's text while it grows: where a stop string ends it, and what of it is certain enough to be shown.

Knows tokens and their text only. A few more tokens cost far less to decode than one to compute, so every look is at
the whole text: a window of the last tokens would read other text than the answer, wherever a tokenizer joins tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from decoder_client.settings import check_stops

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What stands for bytes that are not, or not yet, a character.
_INCOMPLETE = "\ufffd"
# The first byte of a character of four, as vocabularies with a fallback to bytes write it.
_BYTE = "<0xF0>"
# What cleaning up the spaces before punctuation looks at: " n't" is the longest.
_CLEANED = 4


class AnswerText:
    """Watches one answer grow.

    Nothing is decoded unless there are stop strings or somebody to show the text to.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str] = (),
        on_text: Callable[[str], None] | None = None,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        """Ends an answer at the first of `stops`; `decode` gives the text of tokens.

        Args:
            decode: tokens -> text.
            stops: texts that end the answer, each of at least one character.
            on_text: called with each further piece of the text that no later token can change. All pieces together
                are what `finish` returns.
            tokenizer: behind `decode`; asked how the text of tokens depends on those that follow.

        Raises:
            SettingError: a stop string is empty or no text.
        """
        check_stops(stops)
        self._decode = decode
        self._stops = tuple(stops)
        self._on_text = on_text
        self._byte = None if tokenizer is None else _byte_token(tokenizer)
        self._unsettled = _CLEANED if getattr(tokenizer, "clean_up_tokenization_spaces", False) else 0
        self._tokens: list[int] = []
        self._shown = 0
        self.stopped = False

    def add(self, token: int) -> bool:
        """Takes the answer's next token; True when a stop string is complete."""
        self._tokens.append(token)
        if self._stops or self._on_text is not None:
            text = self._decode(self._tokens)
            self.stopped = any(stop in text for stop in self._stops)
            if not self.stopped and self._on_text is not None:
                self._show(text, self._certain(text))
        return self.stopped

    def finish(self) -> str:
        """The answer's text, up to its first stop string if one ended it."""
        text = self._decode(self._tokens)
        if self.stopped:
            text = text[: min(at for stop in self._stops if (at := text.find(stop)) >= 0)]
        self._show(text, len(text))
        return text

    def _show(self, text: str, end: int) -> None:
        if self._on_text is not None and end > self._shown:
            self._on_text(text[self._shown : end])
            self._shown = end

    def _certain(self, text: str) -> int:
        """How many characters neither a further token nor a stop string can take back."""
        certain = text[: max(0, len(text) - self._unsettled)]
        if self._byte is not None:
            # Beside half a character, the whole bytes before it read as incomplete, too.
            certain = _common(certain, self._decode([*self._tokens, self._byte]))
        certain = certain.rstrip(_INCOMPLETE)
        return min((len(certain) - _overlap(certain, stop) for stop in self._stops), default=len(certain))


def _common(text: str, other: str) -> str:
    """What both begin with."""
    if other.startswith(text):
        return text
    end = next((at for at, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), len(other))
    return text[:end]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` may have begun."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


def _byte_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """A token that is half a character, in a vocabulary with a fallback to bytes."""
    token = tokenizer.convert_tokens_to_ids(_BYTE)
    known = isinstance(token, int) and tokenizer.convert_ids_to_tokens(token) == _BYTE
    return token if known else None
