"""Options of the redis connector: what is wrong is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from feedq.connectors.base import parse_options
from feedq.connectors.redis import RedisOptions
from feedq.errors import InvalidInput

MINIMAL = {"url": "redis://127.0.0.1", "streams": ["orders"]}


def options(**source: Any) -> RedisOptions:
    parsed = parse_options("redis", {**MINIMAL, **source})
    assert isinstance(parsed, RedisOptions)
    return parsed


@pytest.mark.parametrize(
    ("url", "port", "tls"),
    [
        ("redis://127.0.0.1", 6379, False),
        ("redis://host:7000/", 7000, False),
        ("rediss://host/15", 6379, True),
        ("redis://[::1]:6380/0", 6380, False),
    ],
)
def test_a_url_is_read(url: str, port: int, tls: bool) -> None:
    location = options(url=url).location
    assert (location.port, location.tls) == (port, tls)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"url": "http://host"}, "source.url: must be redis://host or rediss://host"),
        ({"url": "redis://host/orders"}, "source.url: has a path that is no database"),
        ({"url": "redis://host/1/2"}, "source.url: has a path that is no database"),
        ({"url": "redis://host/0?x=1"}, "source.url: has a path that is no database"),
        ({"url": "redis://user:s3cret@host"}, "source.url: takes no user and password"),
        ({"streams": []}, "source.streams: "),
        ({"streams": [""]}, "source.streams: holds an empty name"),
        ({"streams": ["a", "a"]}, "source.streams: names a stream twice"),
        ({"streams": "a"}, "source.streams: "),
        ({"field": ""}, "source.field: "),
        ({"count": 0}, "source.count: "),
        ({"start": "end"}, "source.start: "),
        ({"password": "{password}"}, "source.password: {password} is no placeholder"),
        ({"ca_file": "/ca.pem"}, "source.ca_file: needs a rediss:// source.url"),
        ({"envelope": True, "format": "bytes"}, "source.envelope: needs source.format json, not bytes"),
        (
            {"format": "csv", "csv": {"fields": ["a"], "header": True}},
            "source.csv: messages have no header lines",
        ),
        ({"max_record_bytes": 0}, "source.max_record_bytes: "),
        ({"stream": "a"}, "source.stream: unknown option"),
    ],
)
def test_a_wrong_option_is_refused_by_name(source: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        options(**source)
    assert complaint in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_password_is_a_template_of_the_secrets() -> None:
    assert options(password="{pw}", secrets={"pw": "${env:PW}"}).password == "{pw}"
