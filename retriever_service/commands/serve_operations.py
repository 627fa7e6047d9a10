"""The options of `serve` that operators of any server know: certificates, tokens, connections.

Files are named by option or by environment variable; what is in them is never an option.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dresd.argument_types import any_number, some_path, whole_number
from dresd.command_line import UsageError

if TYPE_CHECKING:
    from retriever_service.serving.access import Access
    from retriever_service.serving.connections import ConnectionLimits

_FILES = {
    "tls_cert": ("DRESD_SERVE_TLS_CERT", "the server's certificate chain, PEM; serves TLS"),
    "tls_key": ("DRESD_SERVE_TLS_KEY", "its private key, PEM, not encrypted"),
    "tls_client_ca": ("DRESD_SERVE_TLS_CLIENT_CA", "callers need a certificate of these authorities, PEM"),
    "token_file": ("DRESD_SERVE_TOKEN_FILE", "callers need one of these bearer tokens, one a line"),
    "admin_token_file": ("DRESD_SERVE_ADMIN_TOKEN_FILE", "the admin port accepts these, in place of those"),
    "learn_token_file": (
        "DRESD_SERVE_LEARN_TOKEN_FILE",
        "those who have answers learned need one of these, and no other; default: as all callers",
    ),
}
_CONNECTIONS = {
    "max_request_bytes": (whole_number, "longest request"),
    "max_streams": (whole_number, "calls open at a time on one connection"),
    "keepalive_s": (any_number, "silence after which a connection is probed"),
    "max_age_s": (any_number, "age at which a connection is to be made anew, 10%% more or less; 0 is never"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    access = parser.add_argument_group("access", "files are read again when they change")
    for name, (variable, help_text) in _FILES.items():
        access.add_argument(_option(name), type=some_path, metavar="FILE", help=f"{help_text}; or ${variable}")
    access.add_argument("--auth-health", action="store_true", help="health checks need a token, too")
    access.add_argument("--no-reflection", action="store_true", help="do not tell callers which calls there are")
    watching = parser.add_argument_group("watching")
    watching.add_argument(
        "--metrics-listen", metavar="HOST:PORT", help="numbers for Prometheus, over HTTP; default: none"
    )
    watching.add_argument(
        "--traces", action="store_true", help="send OpenTelemetry traces to where the variables OTEL_* say"
    )
    watching.add_argument("--log-format", choices=["text", "json"], default="text", help="of stderr; default: text")
    connections = parser.add_argument_group("connections")
    for name, (kind, help_text) in _CONNECTIONS.items():
        connections.add_argument(_option(name), type=kind, metavar="N" if kind is whole_number else "S", help=help_text)


def access(arguments: argparse.Namespace) -> Access:
    """Who may call.

    Raises:
        UsageError: a certificate without its key, or the other way round; a variable that is empty.
    """
    from retriever_service.serving.access import Access, TlsFiles

    files = {name: _file(arguments, name) for name in _FILES}
    certificate, key, client_ca = files["tls_cert"], files["tls_key"], files["tls_client_ca"]
    tls = TlsFiles(certificate, key, client_ca) if certificate is not None and key is not None else None
    if tls is None and any((certificate, key, client_ca)):
        raise UsageError("TLS needs a certificate and its key; give both --tls-cert and --tls-key, or neither")
    return Access(
        tls=tls,
        token_file=files["token_file"],
        learn_token_file=files["learn_token_file"],
        open_health=not arguments.auth_health,
        reflection=not arguments.no_reflection,
    )


def admin_token_file(arguments: argparse.Namespace) -> Path | None:
    """The tokens of the admin port alone.

    Raises:
        UsageError: its variable is empty.
    """
    return _file(arguments, "admin_token_file")


def connections(arguments: argparse.Namespace) -> ConnectionLimits:
    """What one connection may do.

    Raises:
        UsageError: a value is out of range.
    """
    from retriever_service.serving.connections import ConnectionLimits
    from retriever_service.serving.errors import ServeError

    chosen = {name: value for name in _CONNECTIONS if (value := getattr(arguments, name)) is not None}
    try:
        return ConnectionLimits(**chosen)
    except ServeError as error:
        raise UsageError(str(error)) from error


def _file(arguments: argparse.Namespace, name: str) -> Path | None:
    chosen: Path | None = getattr(arguments, name)
    return chosen or _from_environment(_FILES[name][0])


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _from_environment(variable: str) -> Path | None:
    value = os.environ.get(variable)
    if value == "":  # left empty by mistake, it must not open the server
        raise UsageError(f"${variable} is set and empty. Let it name a file, or unset it.")
    return None if value is None else Path(value)
