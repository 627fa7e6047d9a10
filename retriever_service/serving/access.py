"""Who may call a server, as an operator says it: TLS files, a file of bearer tokens, what is open to everybody.

Knows names of files, not what is in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A server's own certificate, and whose certificates it accepts. All in PEM, all read again when they change.

    Attributes:
        certificate: the server's, followed by those between it and the root.
        key: the certificate's private key, not encrypted.
        client_ca: the authorities of the callers' certificates; None asks callers for none (else: mutual TLS).
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call.

    Attributes:
        tls: None serves in plain text.
        token_file: the bearer tokens accepted, see `bearer_tokens`; None asks for none.
        learn_token_file: likewise of those who may have answers learned; None is those who may ask.
        open_health: health checks need no token.
        reflection: tell callers which calls there are (`grpcurl` and friends).
    """

    tls: TlsFiles | None = None
    token_file: Path | None = None
    learn_token_file: Path | None = None
    open_health: bool = True
    reflection: bool = True
