"""What feeds may reach from a worker: addresses on the network, and programs to run. Pure.

An address is refused when it lies in a denied network, unless it lies in an allowed one too. Some networks are
denied from the start: link-local ones, and the addresses at which clouds hand out credentials to whoever
asks. It is the *resolved* address that counts, for every connection anew, redirects included; a name says
nothing, since whoever owns it may point it anywhere.

Programs are refused unless they are allowed by their absolute path.
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
_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")


@dataclass(frozen=True, slots=True)
class Permissions:
    """What the operator of a worker lets its feeds reach."""

    deny: tuple[Network, ...] = ()
    """Denied besides `DENIED_BY_DEFAULT`."""
    allow: tuple[Network, ...] = ()
    """Exceptions to what is denied, by default or not."""
    programs: tuple[str, ...] = ()
    """Absolute paths that `exec` may run."""

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
                "unless FEEDQ_EGRESS_ALLOW holds it"
            )
        return None


DEFAULT: Final = Permissions()


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Raises `ValueError`, naming the text that is no address and no network."""
    networks = []
    for text in texts:
        try:
            if "%" in text:
                raise ValueError("a zone means something on one host only")
            network = ip_network(text)
        except ValueError:
            raise ValueError(
                f"{text!r} is no network such as 10.0.0.0/8 or fd00::/8, or has bits set behind its prefix"
            ) from None
        if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
            network = IPv4Network((_last_32_bits(network.network_address), network.prefixlen - 96))
        networks.append(network)
    return tuple(networks)


def _passed(address: Address) -> Iterator[Address]:
    """Each address that a connection goes to on its way: all of them have to be permitted."""
    if isinstance(address, IPv6Address):
        if address in _MAPPED:
            # Only a spelling: what goes out is IPv4.
            yield from _passed(_last_32_bits(address))
            return
        # A gateway takes these for addresses of IPv4 that are within, wherever it stands itself.
        if any(address in network for network in _NAT64):
            yield from _passed(_last_32_bits(address))
        elif address in _SIX_TO_FOUR:
            yield from _passed(IPv4Address(int(address) >> 80 & 0xFFFFFFFF))
    if address.is_unspecified:
        # The kernel takes it for this very host.
        yield IPv4Address("127.0.0.1") if address.version == 4 else IPv6Address("::1")
    else:
        yield address


def _last_32_bits(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)
