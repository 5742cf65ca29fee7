"""The permissions of feeds on a worker: addresses on the network, programs to run, and secrets. Pure.

An address is refused when it lies in a denied network, unless it lies in an allowed one too. Some networks are
denied from the start: link-local ones, and the addresses at which clouds hand out credentials to whoever
asks. It is the *resolved* address that counts, for every connection anew, redirects included; a name says
nothing, since whoever owns it may point it anywhere.

Programs are refused unless they are allowed by their absolute path. Secrets are allowed to everybody, until it is
said which ones each tenant's feeds may use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

DENIED_BY_DEFAULT: Final[tuple[Network, ...]] = tuple(
    map(
        ip_network,
        (
            "169.254.0.0/16",  # link-local; metadata of AWS, Azure, GCP and most others
            "fe80::/10",  # link-local
            "fd00:ec2::/32",  # metadata and credentials of AWS
            "fd20:ce::254/128",  # metadata of GCP
            "100.100.100.200/32",  # metadata of Alibaba Cloud
            "168.63.129.16/32",  # host services of Azure
            "192.0.0.192/32",  # metadata of Oracle Cloud
        ),
    )
)
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_GATEWAYS: Final = (
    IPv6Network("64:ff9b::/96"),  # NAT64
    IPv6Network("64:ff9b:1::/48"),  # NAT64 within a network
    IPv6Network("::ffff:0:0:0/96"),  # SIIT: IPv4-translated
)
_LOCAL_NAT64: Final = _GATEWAYS[1]
_COMPATIBLE: Final = IPv6Network("::/96")
_ISATAP: Final = (0x00005EFE, 0x02005EFE)
"""The third quarter of such an address."""
_NOWHERE: Final = IPv4Network("0.0.0.0/8")
ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions that the operator of a worker gives its feeds."""

    deny: tuple[Network, ...] = ()
    """Denied besides `DENIED_BY_DEFAULT`."""
    allow: tuple[Network, ...] = ()
    """Exceptions to what is denied, by default or not."""
    programs: tuple[str, ...] = ()
    """Absolute paths that `exec` may run."""
    secrets: tuple[tuple[str, tuple[str, ...]], ...] | None = None
    """By tenants, see `allows_secret`: ``env:NAME`` and ``file:/path``, with ``*`` at the end for any end. None:
    every feed may use every secret."""

    @lru_cache(maxsize=4_096)  # noqa: B019 -- there are few of these, and a connection asks every time
    def refusal(self, address: str) -> str | None:
        """Why feeds may not connect to an address, in words that follow its name; None when they may."""
        passed = _passed(ip_address(address.partition("%")[0]))
        return next(filter(None, map(self._refusal, passed)), None)

    def _refusal(self, address: Address) -> str | None:
        if any(address in network for network in self.allow):
            return None
        if any(address in network for network in self.deny):
            return "which feeds may not connect to (FEEDQ_EGRESS_DENY)"
        if any(address in network for network in DENIED_BY_DEFAULT):
            return (
                "a link-local or metadata address, which feeds may not connect to "
                "unless FEEDQ_EGRESS_ALLOW lists it"
            )
        return None

    def allows_secret(self, reference: str, *, tenant: str) -> bool:
        """Whether feeds of a tenant may use a secret, ``env:NAME`` or ``file:/path``.

        What is said of the tenant itself counts, else what is said of the longest beginning of it, ``acme-*``, of
        which ``*`` is the shortest. A path may not lead up again.
        """
        if self.secrets is None:
            return True
        if reference.startswith("file:") and ".." in reference.split("/"):
            return False
        fitting = [(who, allowed) for who, allowed in self.secrets if _fits(tenant, who)]
        if not fitting:
            return False
        _, allowed = max(fitting, key=lambda found: (not found[0].endswith(ANY), len(found[0])))
        return any(_fits(reference, pattern) for pattern in allowed)


DEFAULT: Final = Permissions()


def _fits(text: str, pattern: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith(ANY) else text == pattern


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Raises `ValueError`, naming the text that is neither an address nor a network."""
    networks = []
    for text in texts:
        try:
            if "%" in text:
                raise ValueError("a zone has a meaning on one host only")
            network = ip_network(text)
        except ValueError:
            raise ValueError(
                f"{text!r} is not a network such as 10.0.0.0/8 or fd00::/8, or has bits set beyond its prefix"
            ) from None
        if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
            network = IPv4Network((_last_32_bits(network.network_address), network.prefixlen - 96))
        networks.append(network)
    return tuple(networks)


def _passed(address: Address) -> Iterator[Address]:
    """Yields each address that a connection goes to on its way: all of them have to be permitted."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            # Only a spelling: what goes out is IPv4.
            yield from _passed(address.ipv4_mapped)
            return
        yield from map(_here, _within(address))
    yield _here(address)


def _here(address: Address) -> Address:
    """The kernel takes the unspecified address for this very host."""
    if not address.is_unspecified:
        return address
    return IPv4Address("127.0.0.1") if address.version == 4 else IPv6Address("::1")


def _within(address: IPv6Address) -> Iterator[IPv4Address]:
    """Addresses of IPv4 that a gateway may take this one for, wherever it stands itself."""
    number = int(address)
    if any(address in network for network in _GATEWAYS):
        yield _last_32_bits(address)
    if address.sixtofour is not None:
        yield address.sixtofour
    # The relay's server, and the client.
    yield from address.teredo or ()
    if number >> 32 & 0xFFFFFFFF in _ISATAP:
        yield _last_32_bits(address)
    perhaps = []
    if address in _COMPATIBLE:
        perhaps.append(number)
    if address in _LOCAL_NAT64:
        # By the length of the gateway's prefix, 48, 56 or 64, around the eight bits that are zero (RFC 6052).
        perhaps.append((number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF)
        perhaps.append((number >> 64 & 0xFF) << 24 | number >> 32 & 0xFFFFFF)
        perhaps.append(number >> 24 & 0xFFFFFFFF)
    # `::1` is within the first, and what is not an address of the second looks like these.
    yield from (
        found for found in map(IPv4Address, (n & 0xFFFFFFFF for n in perhaps)) if found not in _NOWHERE
    )


def _last_32_bits(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)


def is_loopback(address: str) -> bool:
    """Tells whether what listens there is reached from this machine only."""
    try:
        return address == "localhost" or ip_address(address).is_loopback
    except ValueError:
        return False
