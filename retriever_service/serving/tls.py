"""TLS for a server: its certificate, and its callers' when asked for, from files that may change while it serves.

A new connection gets the files' newest certificate; connections that exist are left alone. Knows nothing of calls.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

import grpc

from retriever_service.echo import echoed
from retriever_service.serving.access import TlsFiles
from retriever_service.serving.errors import ServeError
from retriever_service.serving.watched_files import WatchedFiles, warn_if_readable_by_all


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that follow the files.

    Raises:
        ServeError: the files cannot be read, or are no certificate with its key.
    """
    paths = [files.certificate, files.key, *([files.client_ca] if files.client_ca is not None else [])]
    watched = WatchedFiles("the TLS files", paths, lambda contents: _configuration(files, contents))
    warn_if_readable_by_all(files.key)
    in_use = watched.latest()

    def newest() -> grpc.ServerCertificateConfiguration | None:
        nonlocal in_use
        latest = watched.latest()
        if latest is in_use:
            return None
        in_use = latest
        return latest

    return grpc.dynamic_ssl_server_credentials(
        in_use,
        newest,  # type: ignore[arg-type]  # None is for no change, says gRPC's own documentation
        require_client_authentication=files.client_ca is not None,
    )


def _configuration(files: TlsFiles, contents: Sequence[bytes]) -> grpc.ServerCertificateConfiguration:
    certificate, key, *client_ca = contents
    _check_pair(files, certificate, key)
    if client_ca:
        _check_authorities(files.client_ca, client_ca[0])
    return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca[0] if client_ca else None)


def _check_pair(files: TlsFiles, certificate: bytes, key: bytes) -> None:
    """gRPC itself would log what is wrong in its own words and go on."""
    try:
        # OpenSSL reads a key from files only.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key, password=_no_password)
        changing = (files.certificate.read_bytes(), files.key.read_bytes()) != (certificate, key)
    except (OSError, ValueError, TypeError) as error:  # an SSLError is an OSError
        reason = getattr(error, "reason", None) or "the key is encrypted, or it is none"
        raise ServeError(
            f"{echoed(files.certificate)} and {echoed(files.key)} are not a certificate and its unencrypted key, "
            f"in PEM ({reason}); make them anew or name the right files"
        ) from None
    if changing:
        raise ServeError(f"{echoed(files.certificate)} or {echoed(files.key)} changed while being read; try again")


def _no_password() -> str:
    return ""


def _check_authorities(path: Path | None, content: bytes) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise ServeError(f"{echoed(path)} holds no certificates in PEM; name the callers' authorities") from None
