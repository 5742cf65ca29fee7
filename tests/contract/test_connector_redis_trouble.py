"""The redis connector in trouble: what it says, and whether an edit or another try can help."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from feedq.connectors.redis import RedisConnector
from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.testing.driver import ConnectorDriver
from feedq.testing.loopback import serving
from tests.contract.redis_source import Source, source

__all__ = ["source"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"password": "wrong-s3cret"}, "credentials refused"),
        ({"username": "nobody"}, "credentials refused"),
        ({"username": None, "password": None}, "credentials refused"),
        ({"streams": ["a", "no-stream"]}, "Operation against a key holding the wrong kind of value"),
    ],
)
async def test_what_only_an_edit_can_mend_fails_the_feed(
    source: Source, options: dict[str, Any], says: str
) -> None:
    source.client.set("no-stream", "x")
    error = await source.driver("a", **options).read()
    assert isinstance(error, FeedMisconfigured)
    assert says in str(error)
    assert "s3cret" not in str(error)


@pytest.mark.parametrize("rules", [("+@all", "-xread", "~*"), ("+@all", "-xinfo", "~*"), ("+@all", "~other")])
async def test_a_user_without_the_permission_fails_the_feed(source: Source, rules: tuple[str, ...]) -> None:
    source.allow(*rules)
    error = await source.driver("a").read()
    assert isinstance(error, FeedMisconfigured)
    assert "permission" in str(error)


async def test_a_user_who_may_not_name_its_connection_reads_all_the_same(source: Source) -> None:
    source.allow("+xread", "+xrange", "+xinfo", "+select", "~a")
    source.add("a", b"1")
    await source.driver("a").land(1)


async def test_a_server_that_is_still_loading_is_tried_again() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            writer.write(b"-LOADING Redis is loading the dataset in memory\r\n" * 2)
            await writer.drain()

    async with serving(script) as port:
        driver = ConnectorDriver(RedisConnector, {"url": f"redis://127.0.0.1:{port}", "streams": ["a"]})
        error = await driver.read()
        assert type(error) is SourceUnavailable
        assert "loading" in str(error)
