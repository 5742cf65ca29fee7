"""How connections of the websocket connector end, and what is said of it: refused, broken, closed, or silent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from feedq.errors import FeedMisconfigured, FeedqError, SourceBusy, SourceSilent, SourceUnavailable
from feedq.testing.driver import SECRET
from feedq.testing.loopback import serving
from tests.contract.loopback import until_closed
from tests.contract.test_connector_websocket import driver, read_from
from tests.contract.websocket_server import (
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    accept,
    close_frame,
    frame,
    read_frame,
    read_handshake,
)

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
        ("403 No", FeedMisconfigured, "answered 403 Forbidden; check source.headers"),
        ("404 Not Found", SourceUnavailable, "answered 404 Not Found"),
        ("429 Slow\r\nRetry-After: 30", SourceBusy, "and asks to wait: Retry-After 30"),
        ("500 Oh", SourceUnavailable, "answered 500 Internal Server Error"),
        ("599 Odd", SourceUnavailable, "answered 599"),
        ("200 OK", SourceUnavailable, "answered 200 OK and is no WebSocket; check the path in source.url"),
        (
            f"301 Moved\r\nLocation: wss://elsewhere.example:8443/x?token={SECRET}",
            FeedMisconfigured,
            "redirects to wss://elsewhere.example:8443 (301), which is not followed; set source.url",
        ),
        (
            f"302 Found\r\nLocation: https://user:{SECRET}@elsewhere.example/",
            SourceUnavailable,
            "redirects to https://elsewhere.example (302)",
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
        assert type(error) is kind
        assert said in str(error)
        assert "GET" not in str(error)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "closed by the peer before it had answered the handshake"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade:", "closed by the peer before it had answered"),
        (
            b"HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\nno",
            "closed by the peer before it had answered",
        ),
        (
            b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n",
            "its answer is not HTTP/1.1; does it speak WebSocket on that port",
        ),
        (b"x" * 100_000, "answers the handshake with more than 65536 bytes"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "no WebSocket handshake: missing Connection header"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: wrong\r\n\r\n",
            "no WebSocket handshake: invalid Sec-WebSocket-Accept header: wrong",
        ),
    ],
)
async def test_an_answer_that_is_none_is_explained(answer: bytes, said: str) -> None:
    error = await refusal(answer)
    assert type(error) is SourceUnavailable
    assert said in str(error)


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
    assert type(error) is SourceUnavailable
    assert said in str(error)


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
        (b"\x82\xfe", "incorrect masking"),
        (frame(b"3", rsv1=True), "sent a compressed message; feedq does not offer compression"),
        (frame(b"3", 0x3), "invalid opcode"),
        (frame(b"3", CONTINUATION), "unexpected continuation frame"),
        (frame(b"3", fin=False) + frame(b"4"), "expected a continuation frame"),
        (frame(b"3", fin=False) + frame(b"4" * 70_000), "expected a continuation frame"),
        (frame(b"3", fin=False) + close_frame(1000), "1000"),
        (frame(b"3" * 126, PING), "control frame too long"),
        (frame(b"3", PING, fin=False), "fragmented control frame"),
        (frame(b"3", CLOSE), "close frame too short"),
        (frame(b"\x03\xe8\xff", CLOSE), "invalid start byte"),
    ],
)
async def test_what_breaks_the_protocol_ends_the_connection_after_what_came_before(
    sent: bytes, said: str
) -> None:
    feed, error = await read_from(BEFORE + sent + frame(b"5"))
    assert feed.records == [b"1", b"2"]
    assert type(error) is SourceUnavailable
    assert said in str(error)


# -- silent --------------------------------------------------------------------------------------------


async def test_whatever_comes_answers_a_ping_and_only_messages_keep_a_feed_from_being_stalled() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        for n in range(20):
            # Pings of its own, and never a pong.
            opcode, _ = await read_frame(reader)
            if opcode == PING:
                writer.write(frame(b'{"event": "beat"}') if n < 10 else frame(b"", PING))
        while (await read_frame(reader))[0] in (PING, PONG):
            writer.write(frame(b"", PING))

    async with serving(script) as port:
        error = await driver(
            port,
            ping_interval_s=0.05,
            ping_timeout_s=0.5,
            idle_timeout_s=0.4,
            ignore=[{"/event": "beat"}],
        ).read()
    assert type(error) is SourceSilent
    assert str(error).endswith("connected, but no message received for 0.4 s (source.idle_timeout_s)")
