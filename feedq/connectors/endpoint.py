"""Endpoints: the ``scheme://host:port`` that a socket connector is pointed at, taken apart.

What is refused is never quoted: somebody may have put a password into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Address
from urllib.parse import urlsplit

SHAPE = "tcp://host:port or tls://host:port (an IPv6 address in brackets)"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a source listens."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'tcp'}://{host}:{self.port}"


def parse_endpoint(url: str) -> Endpoint:
    """Raises `ValueError`, saying what is wrong without repeating ``url``."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in ("tcp", "tls"):
        raise ValueError(f"must be {SHAPE}")
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError(f"holds a space or a control character; it must be {SHAPE}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"host or port cannot be read; it must be {SHAPE}") from None
    if "@" in parts.netloc:
        raise ValueError("takes no user and password; send them with source.hello, from source.secrets")
    if parts.path or parts.query or parts.fragment or url.endswith(("?", "#")):
        raise ValueError(f"has something after the port; it must be {SHAPE}")
    if not port:
        raise ValueError(f"needs a port from 1 to 65535; it must be {SHAPE}")
    return Endpoint(_host(parts.hostname or "", bracketed="[" in parts.netloc), port, scheme == "tls")


def _host(host: str, *, bracketed: bool) -> str:
    try:
        if bracketed:
            IPv6Address(host)
        else:
            # What the resolver does later; a label that is empty or too long fails here, not on the worker.
            host.encode("idna")
    except ValueError:
        raise ValueError(f"has a host that cannot be one; it must be {SHAPE}") from None
    if not host:
        raise ValueError(f"needs a host; it must be {SHAPE}")
    return host
