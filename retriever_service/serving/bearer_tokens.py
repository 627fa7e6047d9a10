"""The bearer tokens a server accepts, from a file.

One token a line, several at once so that callers can change over; empty lines and lines that begin with # are comments.
Tokens are kept as hashes only, and no message ever shows one. Knows nothing of calls.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from pathlib import Path

from retriever_service.echo import echoed
from retriever_service.serving.errors import ServeError
from retriever_service.serving.watched_files import WatchedFiles, warn_if_readable_by_all

SHORTEST = 20
"""Characters: 120 bits in base64, beyond anybody's guessing."""
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # RFC 6750
_SCHEME = re.compile(rb"bearer +", re.IGNORECASE)


class BearerTokens:
    """The tokens in a file, followed when it changes.

    Raises:
        ServeError: the file cannot be read, has no token, or has one that is short or no token; names the line.
    """

    def __init__(self, path: Path) -> None:
        self._digests = WatchedFiles("the bearer tokens", [path], lambda contents: _digests_in(path, contents))
        warn_if_readable_by_all(path)

    def accepts(self, authorization: bytes) -> bool:
        """Whether this value of an `authorization` header holds one of the tokens. Takes the same time whichever."""
        scheme = _SCHEME.match(authorization)
        sent = hashlib.sha256(authorization[scheme.end() :] if scheme else b"").digest()
        found = False
        for digest in self._digests.latest():
            found |= hmac.compare_digest(digest, sent)
        return found and scheme is not None


def _digests_in(path: Path, contents: Sequence[bytes]) -> tuple[bytes, ...]:
    digests = []
    for number, line in enumerate(contents[0].splitlines(), 1):
        token = line.strip()
        if not token or token.startswith(b"#"):
            continue
        if _TOKEN.fullmatch(token) is None:
            raise ServeError(
                f"line {number} of {echoed(path)} is no bearer token; a token has only letters, digits and -._~+/ "
                "(make one with: openssl rand -hex 32)"
            )
        if len(token) < SHORTEST:
            raise ServeError(
                f"the token in line {number} of {echoed(path)} is shorter than {SHORTEST} characters and could be "
                "guessed; make one with: openssl rand -hex 32"
            )
        digests.append(hashlib.sha256(token).digest())
    if not digests:
        raise ServeError(f"{echoed(path)} has no bearer token; put one in a line (openssl rand -hex 32 makes one)")
    return tuple(digests)
