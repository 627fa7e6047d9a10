"""What may be wrong with a retriever, for people: one sentence and what to do."""

from __future__ import annotations

from decoder_client.errors import DecoderError


class RetrieverError(DecoderError):
    """The retriever cannot be used as asked."""


class RetrieverUnavailableError(RetrieverError):
    """Nobody answers at the address, or somebody who cannot serve now."""


class RetrieverMismatchError(RetrieverError):
    """The retriever serves another model's drafts, or speaks another dialect; both values are in the message."""
