"""What message brokers' connectors share: envelopes, batches, credentials, and the inbox."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.connectors.messages import Inbox, enclose, name_at_source
from feedq.errors import SourceUnavailable


@pytest.mark.parametrize(
    ("payload", "member"),
    [
        (b'{"a": 1}', '"data":{"a": 1}'),
        (b" 1.50 ", '"data": 1.50 '),
        (b"null", '"data":null'),
        (b"", '"data":""'),
        (b"plain", '"data":"plain"'),
        (b"NaN", '"data":"NaN"'),
        ("“”\n".encode(), '"data":"“”\\n"'),
        (b"\xff\x00", '"data_base64":"/wA="'),
        (b'1,"topic":"forged"', '"data":"1,\\"topic\\":\\"forged\\""'),
        (b"1}", '"data":"1}"'),
    ],
)
def test_an_envelope_holds_the_payload_as_it_can(payload: bytes, member: str) -> None:
    assert enclose({"topic": "t"}, payload).decode() == '{"topic":"t",' + member + "}"


async def test_an_inbox_that_has_failed_gives_nothing_more_but_its_rest() -> None:
    inbox: Inbox[int] = Inbox(bytes_max=10)
    task = asyncio.ensure_future(inbox.take())
    await asyncio.sleep(0)
    inbox.put(1, size=1)
    inbox.fail(SourceUnavailable("first"))
    inbox.fail(SourceUnavailable("second"))
    for taking in (task, inbox.take()):
        with pytest.raises(SourceUnavailable, match="first"):
            await taking
    assert inbox.rest() == [1]
    assert inbox.rest() == []


async def test_a_taker_that_is_cancelled_loses_nothing() -> None:
    inbox: Inbox[int] = Inbox(bytes_max=10)
    task = asyncio.ensure_future(inbox.take())
    await asyncio.sleep(0)
    task.cancel()
    inbox.put(1, size=1)
    with suppress(asyncio.CancelledError):
        await task
    assert await inbox.take() == [1]


def test_a_feed_has_one_name_at_its_source_and_no_other_feed_has_it() -> None:
    one = name_at_source("default", "acme/orders")
    assert one == name_at_source("default", "acme/orders") == "feedq-default-acme-orders-e0a03565"
    similar = [("staging", "acme/orders"), ("default", "acme-orders"), ("default-acme", "orders")]
    assert len({one, *(name_at_source(*of) for of in similar)}) == 4


@given(st.text(max_size=80), st.text(max_size=80))
def test_a_name_at_a_source_is_one_that_every_server_allows(environment: str, feed: str) -> None:
    name = name_at_source(environment, feed)
    assert len(name) <= 64
    assert name.isascii()
    assert name.replace("-", "").isalnum()
