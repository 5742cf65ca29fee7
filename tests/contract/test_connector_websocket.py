"""The websocket connector against scripted servers: what it asks for, and what it makes of what it gets."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest

from feedq.connectors import websocket_connection
from feedq.connectors.websocket import WebsocketConnector
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, FeedqError, SourceBusy, SourceSilent, SourceUnavailable
from feedq.records.framing import BYTE_ORDER_MARK
from feedq.testing.driver import SECRET, ConnectorDriver
from feedq.testing.loopback import PATIENCE_S, serving
from tests.contract.http_source import Asked
from tests.contract.loopback import assert_told, until_closed
from tests.contract.websocket_server import (
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    accept,
    acceptance,
    close_frame,
    frame,
    read_frame,
    read_handshake,
)


def driver(port: int, path: str = "/", *, after: JSON = None, **source: Any) -> ConnectorDriver:
    return ConnectorDriver(
        WebsocketConnector,
        {"url": f"ws://127.0.0.1:{port}{path}", **source},
        feed="acme/orders",
        cursor=after,
    )


async def read_from(sent: bytes, **source: Any) -> tuple[ConnectorDriver, FeedqError]:
    """What a feed gets from a server that sends this and closes, and what it says of the end."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        writer.write(sent)
        writer.write_eof()
        await until_closed(reader)

    async with serving(script) as port:
        feed = driver(port, **source)
        error = await feed.read()
    assert error is not None
    assert not feed.guard.watched
    return feed, error


# -- what it asks for ----------------------------------------------------------------------------------


async def asked_by(**source: Any) -> tuple[Asked, list[bytes]]:
    """The request and the messages of a feed whose server chooses the first subprotocol."""
    asked: list[Asked] = []
    messages: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await accept(reader, writer, "Sec-WebSocket-Protocol: v2"))
        while True:
            opcode, payload = await read_frame(reader)
            assert opcode == TEXT
            messages.append(payload)
            if payload == b"END":
                writer.write(frame(b"{}"))
                return

    async with serving(script) as port:
        subscribe = [*source.pop("subscribe", ()), "END"]
        await driver(port, source.pop("path"), subscribe=subscribe, subprotocols=["v2", "v1"], **source).read(
            count=1
        )
    return asked[0], messages[:-1]


async def test_name_cursor_and_secrets_are_in_the_url_the_headers_and_the_messages() -> None:
    asked, messages = await asked_by(
        path="/ä/{name}?after={cursor}&token={token}&fixed=%20x",
        after="a b/1",
        headers={"Authorization": "Bearer {token}", "X-After": "{cursor}"},
        subscribe=['{"feed": {name}, "from": {cursor}}', "token {token}"],
        secrets={"token": "${env:ACME_TOKEN}"},
    )
    assert asked.target == f"/%C3%A4/acme%2Forders?after=a%20b%2F1&token={SECRET}&fixed=%20x"
    assert asked.headers["authorization"] == f"Bearer {SECRET}"
    assert asked.headers["x-after"] == "a b/1"
    assert asked.headers["user-agent"].startswith("feedq/")
    assert asked.headers["sec-websocket-protocol"] == "v2, v1"
    assert "sec-websocket-extensions" not in asked.headers
    assert messages == [b'{"feed": "acme/orders", "from": "a b/1"}', b"token " + SECRET.encode()]


async def test_without_a_cursor_what_holds_it_is_left_out() -> None:
    asked, messages = await asked_by(
        path="/feed?a=1&after={cursor}",
        headers={"X-After": "{cursor}"},
        subscribe=['{"from": {cursor}}'],
    )
    assert asked.target == "/feed?a=1"
    assert "x-after" not in asked.headers
    assert messages == [b'{"from": null}']
    asked, _ = await asked_by(path="?after={cursor}")
    assert asked.target == "/"


@pytest.mark.parametrize(
    "answer",
    [
        "429 No\r\nRetry-After: ",
        "101 Yes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ",
    ],
)
@pytest.mark.parametrize("before", [140, 180, 195])
async def test_a_secret_that_a_server_repeats_is_not_cut_in_two(answer: str, before: int) -> None:
    """The beginning of one would not be recognised by whoever masks the message."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_handshake(reader)
        writer.write(f"HTTP/1.1 {answer}{'x' * before}{SECRET}{'y' * 100}\r\n\r\n".encode())
        writer.write_eof()
        await until_closed(reader)

    async with serving(script) as port:
        error = await driver(port, "/?token={token}", secrets={"token": "${env:ACME_TOKEN}"}).read()
    assert "xxx" in str(error)
    assert SECRET[:3] not in str(error)


# -- what it gets --------------------------------------------------------------------------------------


async def test_messages_that_come_with_the_handshake_and_all_at_once_are_one_batch() -> None:
    records = [b'{"seq": %d}' % n for n in range(1_000)]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(acceptance(await read_handshake(reader)) + b"".join(map(frame, records)))
        await until_closed(reader)

    async with serving(script) as port:
        feed = driver(port)
        await feed.read(count=1_000)
    assert feed.records == records
    assert len(feed.batches) == 1
    assert feed.batches[0].lines is not None


async def test_a_byte_order_mark_before_the_first_message_is_no_data() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(acceptance(await read_handshake(reader)))
        writer.write(frame(BYTE_ORDER_MARK + b"1") + frame(b"2"))
        await until_closed(reader)

    async with serving(script) as port:
        feed = driver(port)
        await feed.read(count=2)
    assert feed.records == [b"1", b"2"]


async def test_ignored_messages_are_no_records_and_have_no_cursor() -> None:
    sent = [{"seq": 1}, {"event": "beat", "seq": 2}, {"event": "beat", "of": {"feed": 7}}, {"event": "x"}]
    feed, _ = await read_from(
        b"".join(frame(json.dumps(message).encode()) for message in sent) + frame(b"no JSON"),
        ignore=[{"/event": "beat", "/of/feed": 7}, {"/event": "x"}],
        cursor="/seq",
    )
    assert feed.records == [b'{"seq": 1}', b'{"event": "beat", "seq": 2}', b"no JSON"]
    feed, _ = await read_from(
        b"".join(frame(json.dumps(message).encode()) for message in sent),
        ignore=[{"/event": "beat"}, {"/event": "x"}],
        cursor="/seq",
    )
    assert feed.records == [b'{"seq": 1}']
    assert feed.cursor == 1


# -- pings of the server's -----------------------------------------------------------------------------


async def test_pings_are_answered_while_nobody_takes_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feed that is held back by a rate limit, or by its sink, is not to be given up by its source."""
    monkeypatch.setattr(websocket_connection, "ANSWER_S", 0.01)

    answers: list[tuple[int, bytes]] = []
    answered = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        long = frame(b'"%s"' % (b"x" * 1_000))
        # Cut in the middle of a frame's header, and in the middle of a frame.
        for cut in (1, 3, 500):
            writer.write(frame(b"1") + long[:cut])
            await taken.get()
            writer.write(long[cut:] + frame(b"[", fin=False) + frame(b"one", PING) + frame(b"two", PING))
            answers.append(await read_frame(reader))
            writer.write(frame(b"]", CONTINUATION) + frame(b"three", PING))
            answers.append(await read_frame(reader))
            answered.set()
            # Each ping is answered once more when it is read.
            answers.extend([await read_frame(reader) for _ in range(3)])
        done.set()
        await until_closed(reader)

    done = asyncio.Event()
    taken: asyncio.Queue[None] = asyncio.Queue()

    async with serving(script) as port:
        feed = driver(port)
        async with asyncio.timeout(PATIENCE_S), aclosing(feed.open()) as stream:
            for _ in range(3):
                feed.take(await anext(stream))
                taken.put_nowait(None)
                await answered.wait()
                answered.clear()
                while len(feed.records) % 3:
                    feed.take(await anext(stream))
            await done.wait()
    assert feed.records == [b"1", b'"%s"' % (b"x" * 1_000), b"[]"] * 3
    at_once = [(PONG, b"two"), (PONG, b"three")]
    assert answers == [*at_once, (PONG, b"one"), (PONG, b"two"), (PONG, b"three")] * 3


async def test_a_server_that_never_reads_the_answers_to_its_pings_cannot_fill_the_worker() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        while True:
            writer.write(frame(b"x" * 125, PING) * 1_000)
            await writer.drain()

    async with serving(script) as port:
        error = await driver(port).read()
    assert_told(error, SourceUnavailable, "does not read the answers that it is sent")


# -- refused -------------------------------------------------------------------------------------------


async def refusal(answer: bytes, *, ends: bool = True, **source: Any) -> FeedqError:
    """What is said of a server that answers the handshake like this."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_handshake(reader)
        writer.write(answer)
        if ends:
            writer.write_eof()
        await until_closed(reader)

    async with serving(script) as port:
        feed = driver(port, "/?token={token}", secrets={"token": "${env:ACME_TOKEN}"}, **source)
        error = await feed.read()
    assert error is not None
    assert str(error).startswith(f"ws://127.0.0.1:{port}: ")
    assert feed.connected == 0
    assert not feed.guard.watched
    return error


ECHO = f"GET /?token={SECRET} is not allowed".encode()


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        ("401 Unauthorized", FeedMisconfigured, "answered 401 Unauthorized; check source.headers"),
        ("404 Not Found", SourceUnavailable, "answered 404 Not Found"),
        ("429 Slow\r\nRetry-After: 30", SourceBusy, "and asks to wait: Retry-After 30"),
        ("500 Oh", SourceUnavailable, "answered 500 Internal Server Error"),
        ("200 OK", SourceUnavailable, "answered 200 OK and is not a WebSocket; check the path in source.url"),
        (
            f"301 Moved\r\nLocation: wss://elsewhere.example:8443/x?token={SECRET}",
            FeedMisconfigured,
            "redirects to wss://elsewhere.example:8443 (301), which is not followed; set source.url",
        ),
        ("307 Found\r\nLocation: http://[bad", SourceUnavailable, "redirects (307), which is not followed"),
    ],
)
async def test_a_server_that_refuses_is_quoted_by_its_status_alone(
    status: str, kind: type[FeedqError], said: str
) -> None:
    head = f"HTTP/1.1 {status}\r\n".encode()
    for answer in (
        head + b"Content-Length: %d\r\n\r\n%b" % (len(ECHO), ECHO),
        head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(ECHO), ECHO),
        head + b"\r\n" + ECHO,
    ):
        error = await refusal(answer)
        assert_told(error, kind, said)
        assert "GET" not in str(error)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "closed by the peer before it had answered the handshake"),
        (
            b"HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\nno",
            "closed by the peer before it had answered",
        ),
        (
            b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n",
            "its answer is not HTTP/1.1; does it speak WebSocket on that port",
        ),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: wrong\r\n\r\n",
            "not a WebSocket handshake: invalid Sec-WebSocket-Accept header: wrong",
        ),
    ],
)
async def test_an_answer_that_is_none_is_explained(answer: bytes, said: str) -> None:
    assert_told(await refusal(answer), SourceUnavailable, said)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("Sec-WebSocket-Extensions: permessage-deflate", "turn it off at the server"),
        ("Sec-WebSocket-Protocol: v9", "no subprotocols supported"),
    ],
)
async def test_a_server_that_chooses_what_was_not_offered_is_refused(header: str, said: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer, header)
        await until_closed(reader)

    async with serving(script) as port:
        error = await driver(port).read()
    assert_told(error, SourceUnavailable, said)


# -- broken and closed ---------------------------------------------------------------------------------

BEFORE = frame(b"1") + frame(b"2")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (close_frame(1001, "restart"), "closed by the peer: 1001 (going away) restart"),
        (close_frame(4001, "your\n\x1b plan"), "closed by the peer: 4001 (private use) your plan"),
        (frame(b"", CLOSE), "closed by the peer: 1005 (no status received [internal])"),
        (close_frame(1000) + frame(b"3"), "closed by the peer: 1000 (OK)"),
        (b"", "closed by the peer without a close frame"),
        (frame(b"3")[:-1], "closed by the peer in the middle of a message"),
        (frame(b"3")[:1], "closed by the peer in the middle of a message"),
        (frame(b"3", fin=False), "closed by the peer in the middle of a message"),
        (frame(b"3" * 70_000)[:9], "closed by the peer in the middle of a message"),
    ],
)
async def test_what_came_before_the_end_is_taken_and_the_end_is_explained(sent: bytes, said: str) -> None:
    feed, error = await read_from(BEFORE + sent)
    assert feed.records == [b"1", b"2"]
    assert type(error) is SourceUnavailable
    assert str(error).endswith(said)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"\x81\x81mask3", "incorrect masking"),
        (frame(b"3", rsv1=True), "sent a compressed message; feedq does not offer compression"),
        (frame(b"3", 0x3), "invalid opcode"),
        (frame(b"3", fin=False) + frame(b"4"), "expected a continuation frame"),
        (frame(b"3", fin=False) + close_frame(1000), "1000"),
        (frame(b"3" * 126, PING), "control frame too long"),
        (frame(b"3", CLOSE), "close frame too short"),
    ],
)
async def test_what_breaks_the_protocol_ends_the_connection_after_what_came_before(
    sent: bytes, said: str
) -> None:
    feed, error = await read_from(BEFORE + sent + frame(b"5"))
    assert feed.records == [b"1", b"2"]
    assert_told(error, SourceUnavailable, said)


# -- silent --------------------------------------------------------------------------------------------


async def test_whatever_comes_answers_a_ping_and_only_messages_keep_a_feed_from_being_stalled() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        for n in range(80):
            # Pings of its own, and never a pong.
            opcode, _ = await read_frame(reader)
            if opcode == PING:
                writer.write(frame(b'{"event": "beat"}') if n < 40 else frame(b"", PING))
        while (await read_frame(reader))[0] in (PING, PONG):
            writer.write(frame(b"", PING))

    async with serving(script) as port:
        error = await driver(
            port,
            ping_interval_s=0.05,
            ping_timeout_s=2,
            idle_timeout_s=2,
            ignore=[{"/event": "beat"}],
        ).read()
    assert type(error) is SourceSilent
    assert str(error).endswith("connected, but no message received for 2 s (source.idle_timeout_s)")


async def test_a_source_that_answers_no_ping_is_given_up() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await until_closed(reader)

    async with serving(script) as port:
        error = await driver(port, ping_interval_s=0.05, ping_timeout_s=0.2).read()
    assert_told(error, SourceUnavailable, "nothing heard for 0.2 s after a ping (source.ping_timeout_s)")
