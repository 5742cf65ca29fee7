"""Which addresses feeds may connect to, however they are spelled."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.permission import DEFAULT, DENIED_BY_DEFAULT, Network, Permissions, parse_networks


def permissions(*, deny: str = "", allow: str = "") -> Permissions:
    return Permissions(deny=parse_networks(deny.split()), allow=parse_networks(allow.split()))


def spellings(address: IPv4Address) -> list[str]:
    """Addresses that lead to one of IPv4."""
    number = int(address)
    inverted = number ^ 0xFFFFFFFF
    local = 0x64FF9B0001 << 80
    found = [
        str(address),
        f"::ffff:{address}",
        f"::ffff:0:{address}",
        f"64:ff9b::{address}",
        f"64:ff9b:1::{address}",
        f"2a00:1450::5efe:{address}",
        f"fd00::200:5efe:{address}",
        str(IPv6Address(0x2002 << 112 | number << 80 | 7)),
        str(IPv6Address(0x20010000 << 96 | number << 64 | 7)),
        str(IPv6Address(0x20010000 << 96 | 0x08080808 << 64 | inverted)),
    ]
    if address not in IPv4Network("0.0.0.0/8"):
        found += [
            f"::{address}",
            str(IPv6Address(local | number >> 16 << 64 | (number & 0xFFFF) << 40)),
            str(IPv6Address(local | number >> 24 << 64 | (number & 0xFFFFFF) << 32)),
            str(IPv6Address(local | number << 24)),
        ]
    return found


def inside(network: Network) -> st.SearchStrategy[IPv4Address | IPv6Address]:
    first, last = int(network.network_address), int(network.broadcast_address)
    return st.integers(first, last).map(type(network.network_address))


networks_v4 = st.builds(
    lambda number, prefix: IPv4Network((number >> (32 - prefix) << (32 - prefix), prefix)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 32),
)


# -- by default ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.170.2",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "fd20:ce::254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
    ],
)
def test_link_local_and_metadata_addresses_are_denied_by_default(address: str) -> None:
    assert DEFAULT.refusal(address) == (
        "a link-local or metadata address, which feeds may not connect to unless FEEDQ_EGRESS_ALLOW lists it"
    )


@given(data=st.data())
def test_every_address_of_a_denied_network_is_denied(data: st.DataObject) -> None:
    address = data.draw(st.sampled_from(DENIED_BY_DEFAULT).flatmap(inside))
    assert DEFAULT.refusal(str(address)) is not None


# -- what the operator says ----------------------------------------------------------------------------


@given(data=st.data(), network=networks_v4)
def test_a_denied_network_is_denied_in_every_spelling_of_each_address(
    data: st.DataObject, network: IPv4Network
) -> None:
    address = data.draw(inside(network))
    assert isinstance(address, IPv4Address)
    denying = Permissions(deny=(network,))
    if not address.is_unspecified:
        assert all(denying.refusal(spelled) for spelled in spellings(address))


@given(
    data=st.data(),
    deny=st.lists(networks_v4, max_size=3),
    allow=st.lists(networks_v4, min_size=1, max_size=3),
)
def test_what_is_allowed_is_allowed_whatever_is_denied(
    data: st.DataObject, deny: list[IPv4Network], allow: list[IPv4Network]
) -> None:
    address = data.draw(st.sampled_from(allow).flatmap(inside))
    if not address.is_unspecified:
        assert Permissions(deny=tuple(deny), allow=tuple(allow)).refusal(str(address)) is None


@pytest.mark.parametrize("spelled", ["0.0.0.0", "::ffff:0.0.0.0", "127.0.0.1", "::ffff:127.1.2.3"])
def test_the_unspecified_address_is_this_host(spelled: str) -> None:
    assert permissions(deny="127.0.0.0/8").refusal(spelled) is not None
    assert permissions(deny="0.0.0.0/0", allow="127.0.0.0/8").refusal(spelled) is None


def test_zones_make_no_difference() -> None:
    assert permissions(allow="fe80::/10").refusal("fe80::1%eth0") is None
    assert permissions(deny="fd00::/8").refusal("fd00::1%25") is not None


def test_a_gateway_must_be_permitted_as_well_as_what_lies_behind_it() -> None:
    without_ipv6 = permissions(deny="::/0", allow="64:ff9b::/96")
    assert without_ipv6.refusal("64:ff9b::8.8.8.8") is None
    assert without_ipv6.refusal("64:ff9b::169.254.169.254") is not None
    assert without_ipv6.refusal("64:ff9b:1::8.8.8.8") is not None
    # A mapped address is no IPv6 on the wire.
    assert without_ipv6.refusal("::ffff:8.8.8.8") is None


# -- networks ------------------------------------------------------------------------------------------


def test_a_network_of_mapped_addresses_is_one_of_ipv4() -> None:
    assert parse_networks(["::ffff:10.0.0.0/104"]) == (IPv4Network("10.0.0.0/8"),)
    assert permissions(deny="::ffff:10.0.0.0/104").refusal("10.9.9.9") is not None


@pytest.mark.parametrize(
    "text", ["", "example.com", "10.0.0.1/8", "10.0.0.0/33", "fe80::%eth0/10", "10.0.0.0-10.0.0.9", "10", "*"]
)
def test_what_is_no_network_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a network such as") as caught:
        parse_networks(["10.0.0.0/8", text])
    assert str(caught.value).startswith(repr(text))


@pytest.mark.parametrize(
    "spelled", ["::127.0.0.1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:80ff:fffe", "::1"]
)
def test_who_denies_this_very_host_denies_it_in_every_spelling(spelled: str) -> None:
    assert permissions(deny="127.0.0.0/8 ::1").refusal(spelled) is not None


def test_the_loopback_address_of_ipv6_is_no_spelling_of_another() -> None:
    assert permissions(deny="0.0.0.0/8").refusal("::1") is None


# -- secrets -------------------------------------------------------------------------------------------


def allowing(**allowed: list[str]) -> Permissions:
    return Permissions(
        secrets=tuple((who.replace("_any", "*"), tuple(what)) for who, what in allowed.items())
    )


@pytest.mark.parametrize(
    ("tenant", "reference", "allowed"),
    [
        ("acme", "env:ACME_TOKEN", True),
        ("acme", "file:/run/secrets/acme/token", True),
        ("acme", "file:/run/secrets/acme/../other/token", False),
        ("acme", "file:/run/secrets/acme2/token", False),
        ("acme-eu", "env:ACME_TOKEN", False),
        ("acme-eu", "env:EU", True),
        ("acme-eu", "env:EU2", False),
        ("acme-eu-west", "env:EU", False),
        ("", "env:SHARED", True),
        ("other", "env:ACME_TOKEN", False),
    ],
)
def test_a_tenants_feeds_use_the_secrets_that_are_allowed_to_it(
    tenant: str, reference: str, allowed: bool
) -> None:
    permitted = allowing(
        _any=["env:SHARED"],
        acme=["env:ACME_*", "file:/run/secrets/acme/*"],
        **{"acme-eu_any": ["env:EU"], "acme-eu-west": ["env:WEST"]},
    )
    assert permitted.allows_secret(reference, tenant=tenant) is allowed


def test_every_secret_is_allowed_until_something_is_said_and_then_nothing_else() -> None:
    assert DEFAULT.allows_secret("file:/etc/../etc/passwd", tenant="acme")
    assert not allowing(acme=["*"]).allows_secret("env:A", tenant="other")
    assert allowing(acme=["*"]).allows_secret("env:A", tenant="acme")
    assert not Permissions(secrets=()).allows_secret("env:A", tenant="acme")
