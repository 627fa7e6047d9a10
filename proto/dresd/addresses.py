"""Where a server listens, and the ways to say where several do: checked when said, looked up when needed.

Either side of the wire finds servers by this module. It opens no connection and keeps no time: whoever owns a
`Discovery` decides when to ask it again.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path

_UNIX = re.compile(r"unix(-abstract)?:\S+")
_TARGET = re.compile(
    # What may stand before a name: a gRPC resolver, and for dns the server to ask.
    r"(?P<resolver>dns://[^\s/]*/|dns:|ipv4:|ipv6:)?"
    r"(?P<host>\[[0-9A-Fa-f:.%\w-]+\]|[^\s/:\[\]@,?#]*):(?P<port>[0-9]{1,9})"
)
HIGHEST_PORT = 65_535
_MAX_HOST, _MAX_LABEL = 253, 63  # DNS (RFC 1035)
# The names that this module looks up. One with a DNS server of its own is left to gRPC, as one address.
_LOOKED_UP = ("dns:", "dns:///")
_FILE = "file:"
_MAX_SERVERS = 4096


class AddressError(Exception):
    """No address, or none found where they should be: what is wrong, in one sentence."""


@dataclass(frozen=True, slots=True)
class Target:
    """A text of the form "HOST:PORT", perhaps after a gRPC resolver, in parts; whether they make sense is not said.

    Attributes:
        resolver: such as "dns:///"; mostly "".
        host: as written, an IPv6 address in its brackets; may be "".
        port: may be no port, such as 0 or 70000.
    """

    resolver: str
    host: str
    port: int

    @property
    def bare_host(self) -> str:
        """The host without brackets."""
        return self.host.strip("[]")

    def __str__(self) -> str:
        """As it was written, but for zeros before the port."""
        return f"{self.resolver}{self.host}:{self.port}"


def split_target(text: str) -> Target | None:
    """The parts of "HOST:PORT", "[v6]:PORT" or either of them after a resolver; None for any other text."""
    parts = _TARGET.fullmatch(text)
    return None if parts is None else Target(parts["resolver"] or "", parts["host"], int(parts["port"]))


def check_address(address: str) -> None:
    """Refuses what gRPC would take for another address than meant, or fail on for reasons nobody understands.

    Raises:
        AddressError: `address` is neither "HOST:PORT" nor a gRPC target; says what is wrong with it.
    """
    reason = _wrong_with(address)
    if reason is not None:
        shown = address if len(address) <= _MAX_LABEL else f"{address[:_MAX_LABEL]}..."
        raise AddressError(f"{shown!r} is not an address: {reason}; give HOST:PORT, such as localhost:50051")


def _wrong_with(address: str) -> str | None:
    if not address:
        return "it is empty"
    if _UNIX.fullmatch(address):
        return None
    target = split_target(address)
    if target is None or not target.host:
        return "it has no port" if ":" not in address else "it is not one host and one port"
    if not 1 <= target.port <= HIGHEST_PORT:
        return f"a port lies in 1..{HIGHEST_PORT}, not {target.port}"
    host = target.host.rstrip(".")
    if len(host) > _MAX_HOST or not all(0 < len(label) <= _MAX_LABEL for label in host.split(".")):
        return f"a host has at most {_MAX_HOST} characters, and 1 to {_MAX_LABEL} between its dots"
    return None


class Discovery:
    """The servers that a text stands for.

    Args:
        text: one address or several with commas between them ("HOST:PORT,HOST:PORT"); "dns:///NAME:PORT", a server at
            each address of the name; or "file:PATH", an address a line, where "#" begins a remark.

    Raises:
        AddressError: it is none of these.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._file = Path(text[len(_FILE) :]) if text.startswith(_FILE) else None
        self._name: tuple[str, int] | None = None
        self._addresses: tuple[str, ...] = ()
        if text == _FILE:
            raise AddressError(f"{text!r} is not an address: it names no file; give file:PATH")
        if self._file is not None:
            return
        self._addresses = tuple(dict.fromkeys(text.split(",")))
        for address in self._addresses:
            check_address(address)
        target = split_target(text)
        if target is not None and target.resolver in _LOOKED_UP:
            self._name = target.bare_host, target.port

    @property
    def may_change(self) -> bool:
        """Whether asking again can bring other servers."""
        return self._file is not None or self._name is not None

    def addresses(self) -> tuple[str, ...]:
        """The servers now, each once; may wait for a name server.

        Raises:
            AddressError: the name cannot be resolved, or the file cannot be read or holds something else.
        """
        if self._file is not None:
            return _listed(self._file)
        if self._name is not None:
            return _resolved(*self._name)
        return self._addresses


def _listed(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise AddressError(f"cannot read the servers in {path}: {error.strerror}; is the path right?") from error
    except UnicodeError as error:
        raise AddressError(f"cannot read the servers in {path}: it is no UTF-8 text") from error
    addresses = tuple(dict.fromkeys(address for line in lines if (address := line.split("#")[0].strip())))
    if not addresses:
        # As a file is while somebody writes it anew.
        raise AddressError(f"{path} lists no servers; add the address of one")
    if len(addresses) > _MAX_SERVERS:
        raise AddressError(f"{path} lists {len(addresses)} servers; {_MAX_SERVERS} are the most")
    try:
        for address in addresses:
            check_address(address)
    except AddressError as error:
        raise AddressError(f"in {path}: {error}") from error
    return addresses


def _resolved(host: str, port: int) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AddressError(f"cannot resolve {host}: {reason}; is the name right?") from error
    hosts = (str(address[0]) for _, _, _, _, address in found)
    return tuple(dict.fromkeys(f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in hosts))
