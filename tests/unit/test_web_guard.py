"""Which requests Flower looks at, and where it may listen without a login."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from feedq.api.authentication import is_allowed, is_foreign
from feedq.web.guard import why_refused, why_unsafe

HERE = "flower.example.com"
ASKED = {"Host": "localhost:5555"}
EVIL = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}


def options(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"basic_auth": None, "auth": "", "unix_socket": "", "address": ""} | given)


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://flower:5555"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": "http://flower:5555"}, False),
        ({"Origin": "http://flower:8080"}, True),
        ({"Origin": "https://evil.example"}, True),
        ({"Origin": "null"}, True),
    ],
)
def test_only_the_page_itself_or_no_browser_may_ask_for_a_change(
    headers: Mapping[str, str], foreign: bool
) -> None:
    assert is_foreign(headers, host="flower:5555") is foreign


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:5555", True),
        ("10.0.0.7", True),
        ("[::1]:5555", True),
        ("localhost:5555", True),
        ("LOCALHOST.", True),
        ("flower.example.com:8080", True),
        ("Flower.Example.com", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("flower.example.com.evil.example", False),
        ("127.0.0.1.evil.example:5555", False),
        ("user@evil.example", False),
        ("[", False),
        (":5555", False),
    ],
)
def test_flower_is_known_by_addresses_and_by_the_names_that_it_was_given(host: str, allowed: bool) -> None:
    assert is_allowed(host, {HERE}) is allowed
    assert is_allowed(host, {"*"}) is (host != "[")


@pytest.mark.parametrize("has_login", [False, True])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "ODD"])
def test_only_its_own_pages_under_its_own_name_may_ask_for_a_change(method: str, has_login: bool) -> None:
    def refused(headers: Mapping[str, str]) -> str:
        return why_refused(method, headers, hosts={HERE}, has_login=has_login) or ""

    assert refused(ASKED) == refused({"Host": HERE}) == refused({}) == ""
    assert refused(ASKED | {"Origin": "http://localhost:5555", "Sec-Fetch-Site": "same-origin"}) == ""
    assert "a page of another site" in refused(ASKED | EVIL)
    assert "not known as 'evil.example'" in refused({"Host": "evil.example", "Origin": "http://evil.example"})
    assert "FEEDQ_FLOWER_HOSTS" in refused({"Host": "evil.example"})


def test_without_a_login_a_name_that_flower_does_not_know_reads_nothing_either() -> None:
    asked = {"Host": "evil.example"}
    assert "not known" in str(why_refused("GET", asked, hosts=(), has_login=False))
    assert why_refused("GET", asked, hosts=(), has_login=True) is None
    assert why_refused("GET", ASKED | EVIL, hosts=(), has_login=False) is None, "a link on another page"


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::", "10.0.0.7", "flower.example.com"])
def test_flower_without_a_login_listens_on_this_machine_only(address: str) -> None:
    unsafe = str(why_unsafe(options(address=address)))
    assert address in unsafe
    for said in ("FLOWER_BASIC_AUTH=", "--auth", "--address=127.0.0.1"):
        assert said in unsafe
    assert why_unsafe(options(address=address, basic_auth=["ada:lovelace"])) is None
    assert why_unsafe(options(address=address, auth="ada@example.com")) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_flower_on_the_loopback_address_needs_no_login(address: str) -> None:
    assert why_unsafe(options(address=address)) is None


def test_flower_on_a_unix_socket_needs_no_login() -> None:
    assert why_unsafe(options(unix_socket="/run/flower.sock")) is None
