"""What a source does, with the options that a feed would have, and the error that must come of it.

An option that is not a default is there because the attack is on it, or to have a timeout in a second.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from feedq.errors import FeedMisconfigured, FeedqError, SourceSilent, SourceUnavailable
from tests.contract.mqtt_broker import packet, varint
from tests.contract.websocket_server import frame
from tests.hostile.speaking import (
    MEBIBYTE,
    Script,
    answers,
    blast,
    bulk,
    drips,
    entries,
    http,
    mqtt,
    nats,
    publish,
    record_of_stream,
    redis,
    says,
    websocket,
    zipped,
)

URLS: Final = {
    "tcp": "tcp://{at}",
    "websocket": "ws://{at}/",
    "http": "http://{at}/",
    "sse": "http://{at}/",
    "redis": "redis://{at}",
    "mqtt": "mqtt://{at}",
    "nats": "nats://{at}",
}
"""For the source's address; the others read a file or run a program in a directory, ``{in}``."""
_USUAL: Final[Mapping[str, Mapping[str, Any]]] = {
    "redis": {"streams": ["s"]},
    "mqtt": {"topics": ["t"]},
    "nats": {"stream": "orders"},
}
DEEP: Final = 100_000
BRACKETS: Final = b'{"seq":1,"a":[' + b"[]," * ((MEBIBYTE - 100) // 3) + b"[]]}"
"""A record of the largest size allowed by default, of as much structure as there can be."""
NOISE: Final = Random(17).randbytes(MEBIBYTE)


@dataclass(frozen=True, eq=False)
class Attack:
    """One source, and what a feed that reads it must end with."""

    name: str
    """Begins with the connector's."""
    script: Script | None
    """None: it is no server, but a file or a program."""
    says: str
    """What stands in the error."""
    kind: type[FeedqError] = SourceUnavailable
    options: Mapping[str, Any] = field(default_factory=dict)
    goes_on: bool = False
    """What it sends is allowed: it is read for a while, and then we end it."""

    @property
    def connector(self) -> str:
        return self.name.partition(":")[0]

    def source(self, at: str, directory: str) -> dict[str, Any]:
        """The feed's source, with the address of the server or a directory in its place."""
        url = {"url": URLS[self.connector]} if self.connector in URLS else {}
        made: dict[str, Any] = _filled(
            {**url, **_USUAL.get(self.connector, {}), **self.options}, at, directory
        )
        return made


def _filled(value: Any, at: str, directory: str) -> Any:
    if isinstance(value, str):
        return value.replace("{at}", at).replace("{in}", directory)
    if isinstance(value, Mapping):
        return {name: _filled(each, at, directory) for name, each in value.items()}
    return [_filled(each, at, directory) for each in value] if isinstance(value, list) else value


def _attack(
    name: str,
    script: Script | None,
    says: str = "",
    kind: type[FeedqError] = SourceUnavailable,
    **options: Any,
) -> Attack:
    return Attack(name, script, says, kind, options)


def _goes_on(name: str, script: Script | None, **options: Any) -> Attack:
    return Attack(name, script, "", options=options, goes_on=True)


def _too_large(name: str, script: Script | None, option: str = "max_record_bytes", **options: Any) -> Attack:
    return _attack(name, script, f"raise source.{option}", FeedMisconfigured, **options)


CSV: Final[dict[str, Any]] = {"format": "csv", "csv": {"fields": ["a", "b"], "header": True}, "cursor": "/a"}
POLL: Final[dict[str, Any]] = {"mode": "poll"}
ELEMENTS: Final[dict[str, Any]] = {"mode": "poll", "records": ""}
CLOSED: Final = "closed by the peer"
NO_HTTP: Final = "is not HTTP/1.1"
NO_REDIS: Final = "not one of Redis"
NO_MQTT: Final = "against the rules of MQTT"
NO_NATS: Final = "is it a NATS server?"
HEAD: Final = b"HTTP/1.1 200 OK\r\n"
EVENTS: Final = b"Content-Type: text/event-stream\r\n"
GZIP: Final = b"Content-Encoding: gzip\r\n"


async def _floods_with_pings(reader: Any, writer: Any) -> None:
    await blast(writer, b"PING\r\n" * 1000)


def _delivers(count: int, payload: bytes) -> Any:
    def pulled(_: bytes, sid: bytes) -> Script:
        return says(b"".join(record_of_stream(sid, seq, payload) for seq in range(1, count + 1)))

    return pulled


def _announces(reply: bytes, sid: bytes) -> Script:
    return says(
        b"MSG orders.new " + sid + b" $JS.ACK.orders.c.1.1.1.1795167253292007528.0 4000000000\r\n", b"x"
    )


def _heads(reply: bytes, sid: bytes) -> Script:
    return says(b"HMSG orders.new " + sid + b" 5 3\r\nxxx\r\n", b"")


def _odd_reply(reply: bytes, sid: bytes) -> Script:
    return says(b"MSG orders.new " + sid + b" $JS.ACK.what 1\r\n1\r\n", b"")


TCP: Final = (
    _too_large("tcp: a line without an end", says(b"", b"x")),
    _too_large("tcp: a delimiter that never comes", says(b"", b"\n"), framing="delimiter", delimiter="|"),
    _too_large("tcp: a record said to have 4 GB", says(b"\xff\xff\xff\xff", b"x"), framing="length"),
    _attack("tcp: empty records", says(b"", b"\0", bytes_max=2**20), CLOSED, framing="length"),
    _attack("tcp: empty lines", says(b"", b"\n", bytes_max=2**22), CLOSED, cursor="/seq"),
    _attack(
        "tcp: records of a byte, no cursor in them", says(b"", b"0\n", bytes_max=2**18), CLOSED, cursor="/seq"
    ),
    _attack(
        "tcp: short records that seem to have a cursor",
        says(b"", b'"seq"\n', bytes_max=2**22),
        CLOSED,
        cursor="/seq",
    ),
    _attack(
        "tcp: deep records",
        says(b"", (b"[" * DEEP + b"]" * DEEP + b"\n"), bytes_max=2**23),
        CLOSED,
        cursor="/seq",
    ),
    _attack(
        "tcp: brackets",
        says(b"", b'{"seq":1,"b":[' + b"[]," * 340_000 + b"[]]}\n", bytes_max=2**24),
        CLOSED,
        cursor="/seq",
    ),
    _attack(
        "tcp: a cursor of half a megabyte",
        says(b'{"seq":"' + b"x" * 2**19 + b'"}\n'),
        "at most 8192 are kept",
        FeedMisconfigured,
        cursor="/seq",
    ),
    _attack(
        "tcp: a deep cursor",
        says(b'{"seq":' + b"[" * 900 + b"]" * 900 + b"}\n"),
        "nested deeper than can be kept",
        FeedMisconfigured,
        cursor="/seq",
    ),
    _attack(
        "tcp: pings, and no reading of answers",
        says(b"", b"P" + b"x" * 200 + b"\n"),
        "does not read the answers",
        ping={"prefix": "P", "answer": "{rest}" * 20},
    ),
    _attack("tcp: fields without an end", says(b"", b"," * 2**19 + b"\n", bytes_max=2**24), CLOSED, **CSV),
    _too_large("tcp: a quote without an end", says(b'"', b",\n" * 2**18), **CSV),
    _attack("tcp: quotes and short lines", says(b"", b'"' + b",\n" * 2**11, bytes_max=2**24), CLOSED, **CSV),
)

WEBSOCKET: Final = (
    _attack("websocket: fragments without an end", websocket(b"\x01\x00", b"\x00\x01x"), "fragments"),
    _attack(
        "websocket: pings", websocket(b"", b"\x89\x00"), "no message received", SourceSilent, idle_timeout_s=1
    ),
    _attack(
        "websocket: messages to be looked at",
        websocket(b"", frame(b'{"event":' + b"[" * 60 + b"]" * 60 + b"}"), bytes_max=2**21),
        CLOSED,
        ignore=[{"/event": "x"}],
        cursor="/seq",
    ),
    _attack(
        "websocket: brackets",
        websocket(b"", frame(b'{"seq":1,"b":[' + b"[]," * 340_000 + b"[]]}"), bytes_max=2**23),
        CLOSED,
        ignore=[{"/event": "x"}],
        cursor="/seq",
    ),
    _too_large("websocket: a frame said to have 4 EB", websocket(b"\x82\x7f\x3f" + b"\xff" * 7, b"x")),
    _attack("websocket: noise", websocket(NOISE, b""), "what it sent is not WebSocket"),
    _attack(
        "websocket: a greeting without an end",
        answers(b"HTTP/1.1 101 X\r\nX: ", b"x"),
        "answers the handshake with more than",
    ),
    _attack("websocket: a refusal without an end", answers(b"HTTP/1.1 500 X\r\n\r\n", b"x")),
    _attack(
        "websocket: a greeting in drips",
        drips(b"HTTP/1.1 101 X\r\n" * 100),
        "no connection within",
        connect_timeout_s=1,
    ),
)

HTTP: Final = (
    _attack(
        "http: a head without an end",
        answers(HEAD, b"X-A: " + b"y" * 1000 + b"\r\n"),
        "head of its answer is larger",
    ),
    _attack(
        "http: sixteen thousand headers", answers(HEAD + b"a:\r\n" * 16_000 + b"\r\n"), "headers, at most"
    ),
    _attack("http: a head in drips", drips(HEAD * 100), "no answer within", response_timeout_s=1),
    _too_large(
        "http: chunks of a byte",
        answers(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        max_record_bytes=20_000,
    ),
    _attack(
        "http: a chunk said to have 16 EB",
        answers(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n", b"x"),
        NO_HTTP,
    ),
    _attack("http: provisional answers", answers(b"", b"HTTP/1.1 103 X\r\n\r\n"), "provisional answers"),
    _attack(
        "http: a pause until a year of 60,000 digits",
        answers(b"HTTP/1.1 503 X\r\nRetry-After: Mon, 01 Jan " + b"9" * 60_000 + b" 00:00:00 GMT\r\n\r\n"),
        "answered 503",
    ),
    _attack("http: noise", says(NOISE, b"")),
    _attack(
        "http: a poll said to have 1 EB",
        answers(HEAD + b"Content-Length: 1000000000000000000\r\n\r\n", b"x"),
        "raise source.max_response_bytes",
        FeedMisconfigured,
        **POLL,
    ),
    _too_large("http: a poll without an end", answers(HEAD + b"\r\n", b"x"), "max_response_bytes", **POLL),
    _too_large(
        "http: a poll that unpacks to a gigabyte",
        http(GZIP, zipped(bytes(2**24), 16)),
        "max_response_bytes",
        **POLL,
    ),
    _goes_on("http: a poll of archives of nothing", http(GZIP, gzip.compress(b"") * 100_000), **ELEMENTS),
    _too_large(
        "http: a poll of eight million records",
        http(b"", b"[" + b"0," * (8 * MEBIBYTE - 8) + b"0]"),
        "max_records",
        **ELEMENTS,
    ),
    _attack(
        "http: a poll that is deep", http(b"", b"[" * DEEP + b"]" * DEEP), "nested too deeply", **ELEMENTS
    ),
    _attack(
        "http: a list far behind brackets",
        http(b"", b'{"b":[' + b"[]," * (5 * MEBIBYTE) + b'[]],"a":{"b":[1,]}}'),
        "not JSON",
        mode="poll",
        records="/a/b",
    ),
    _too_large(
        "http: a list of one large record",
        http(b"", b'[{"a":[' + b"[]," * (MEBIBYTE // 2) + b"[]]}]"),
        **ELEMENTS,
    ),
    _attack(
        "http: lines of a byte in a poll",
        http(b"", b"0\n" * (8 * MEBIBYTE - 8)),
        "raise source.max_records",
        FeedMisconfigured,
        mode="poll",
        records="framed",
    ),
    _goes_on(
        "http: an address of the next page of 8 MB",
        http(b"", b'{"next":"' + b"x" * 2**23 + b'","a":[]}'),
        mode="poll",
        records="/a",
        next_page="/next",
        interval_s=0.1,
        response_timeout_s=1,
    ),
    _goes_on(
        "http: pages in a circle",
        http(b"", b'{"next":"/?%b","a":[1]}' % (b"x" * 2000), measured=True),
        mode="poll",
        records="/a",
        next_page="/next",
        interval_s=0.1,
    ),
    _goes_on(
        "http: tags of 60 kB",
        http(b'ETag: "' + b"x" * 60_000 + b'"\r\n', b"[1]", measured=True),
        **ELEMENTS,
        interval_s=0.1,
    ),
)

SSE: Final = (
    _too_large("sse: a line without an end", http(EVENTS, b"data:", b"x")),
    _too_large("sse: lines of data without an end", http(EVENTS, b"", b"data\n")),
    _goes_on("sse: empty lines", http(EVENTS, b"", b"\n")),
    _goes_on("sse: comments, packed", http(EVENTS + GZIP, zipped(b":\n" * 2**19, 50)), idle_timeout_s=1),
    _attack(
        "sse: an id of a megabyte",
        http(EVENTS, b"id:" + b"x" * 2**20 + b"\ndata:1\n\n"),
        "id of an event has more than",
        FeedMisconfigured,
    ),
    _goes_on(
        "sse: events of a byte, each another way",
        http(EVENTS, b"", b"data:1\n\nid:1\ndata\n\n:\r\n\r\n"),
        envelope=True,
    ),
    _goes_on("sse: brackets", http(EVENTS, b"", b"data:[" + b"[]," * 340_000 + b"[]]\n\n"), envelope=True),
    _attack(
        "sse: another type of content",
        http(b"Content-Type: text/" + b"x" * 60_000 + b"\r\n", b"x"),
        "not text/event-stream",
    ),
)

REDIS: Final = (
    _attack(
        "redis: a text of 8 GB",
        redis(b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$8000000000\r\n", b"x"),
        NO_REDIS,
    ),
    _too_large(
        "redis: a text of 500 MB",
        redis(b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$500000000\r\n", b"x"),
    ),
    _attack("redis: arrays in arrays", redis(b"", b"*1\r\n"), NO_REDIS),
    _attack("redis: an array of a billion", redis(b"*1000000000\r\n", b"*0\r\n"), NO_REDIS),
    _attack(
        "redis: an entry of a billion fields",
        redis(b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*400000000\r\n", b"$0\r\n\r\n"),
        "at most 10000",
        FeedMisconfigured,
    ),
    _too_large(
        "redis: fields that are too large together",
        redis(
            entries(
                (b"1-1", b"*200\r\n" + b"".join(bulk(b"%d" % n) + bulk(b"x" * 20_000) for n in range(100)))
            )
        ),
    ),
    _attack(
        "redis: a thousand entries of a megabyte",
        redis(
            entries(
                *((b"%d-1" % n, b"*2\r\n" + bulk(b"f") + bulk(b"x" * (MEBIBYTE - 100))) for n in range(1, 17))
            )
        ),
        "no answer for 1 s",
        SourceSilent,
        field="f",
        idle_timeout_s=1,
    ),
    _attack(
        "redis: another stream",
        redis(entries((b"1-1", b"*2\r\n" + bulk(b"f") + bulk(b"x")), stream=b"other")),
        NO_REDIS,
    ),
    _attack(
        "redis: an id that goes back", redis(entries((b"0-0", b"*2\r\n" + bulk(b"f") + bulk(b"x")))), NO_REDIS
    ),
    _attack("redis: an error of a megabyte", redis(b"-ERR ", b"x"), NO_REDIS),
    _attack("redis: a description in a description", redis(b"", info=b"*1\r\n" * 200 + b":1\r\n"), NO_REDIS),
    _attack("redis: a web server", says(b"HTTP/1.1 400 Bad Request\r\n\r\n" + NOISE, b"")),
)

MQTT: Final = (
    _too_large("mqtt: a message of 256 MB", mqtt(b"\x32\xff\xff\xff\x7f\x00\x01t\x00\x01", b"x")),
    _attack("mqtt: a control packet of a megabyte", mqtt(b"\x90" + varint(MEBIBYTE), b"x"), NO_MQTT),
    _attack("mqtt: messages of QoS 2", mqtt(b"", publish(b"x" * 1000, qos=2)), NO_MQTT),
    _attack(
        "mqtt: a megabyte of properties", mqtt(publish(b"1", properties=b"\x26\x00\x00\x00\x00" * 200_000))
    ),
    _goes_on(
        "mqtt: many properties of many messages",
        mqtt(b"", publish(b"1", properties=b"\x26\x00\x00\x00\x00" * 800)),
        envelope=True,
    ),
    _attack("mqtt: one number for all messages", mqtt(b"", publish(b"x" * 100), bytes_max=2**19)),
    _attack(
        "mqtt: more reasons than subscriptions", mqtt(b"", suback=b"\x01" * 1000), "with 1000 reason codes"
    ),
    _attack("mqtt: noise", mqtt(NOISE), NO_MQTT),
    _attack(
        "mqtt: a message before the login",
        says(b"\x32\xff\xff\xff\x7f\x00\x01t\x00\x01", b"x"),
        connect_timeout_s=1,
    ),
    _attack("mqtt: a web server", says(b"HTTP/1.1 400 Bad Request\r\n\r\n" + NOISE, b"")),
    _attack("mqtt: a packet that ends too early", mqtt(packet(3, b"\x00", flags=2))),
)

NATS: Final = (
    _attack("nats: a greeting without an end", says(b"INFO ", b"x"), NO_NATS),
    _attack("nats: a line without an end", nats(on_login=says(b"MSG ", b"x")), NO_NATS),
    _too_large("nats: a message of 4 GB", nats(pulled=_announces)),
    _attack("nats: headers that are larger than the message", nats(pulled=_heads), NO_NATS),
    _attack("nats: a message that is none of the stream", nats(pulled=_odd_reply), "without its sequence"),
    _attack("nats: more messages than were asked for", nats(pulled=_delivers(20_000, b"x" * 10))),
    _goes_on("nats: pings", nats(on_login=_floods_with_pings)),
    _attack(
        "nats: one greeting after the other",
        nats(on_login=says(b"", b'INFO {"connect_urls":["a:1","b:2"]}\r\n', bytes_max=2**21)),
        CLOSED.replace("peer", "server"),
    ),
    _attack("nats: a greeting that is deep", says(b"INFO " + b"[" * 60_000 + b"\r\n"), NO_NATS),
    _attack("nats: a greeting of other kinds", says(b'INFO {"version":7,"max_payload":"x"}\r\n'), NO_NATS),
    _attack("nats: an answer that is deep", nats(api=b"[" * DEEP + b"]" * DEEP), "not JetStream's"),
    _attack("nats: an answer of other kinds", nats(api=b'{"config":7,"state":[]}'), "not JetStream's"),
    _attack(
        "nats: an answer of brackets",
        nats(api=b'{"a":[' + b"[]," * 340_000 + b"[]]}"),
        "not JetStream's",
    ),
    _attack("nats: noise", nats(on_login=says(NOISE)), NO_NATS),
    _attack("nats: a web server", says(b"HTTP/1.1 400 Bad Request\r\n\r\n" + NOISE, b"")),
)

_PROGRAMS: Final = {
    "lines.sh": "#!/bin/sh\nexec head -c 300000000 /dev/zero\n",
    "complains.sh": "#!/bin/sh\nhead -c 100000000 /dev/zero >&2\nexit 3\n",
    "empty.sh": "#!/bin/sh\nyes '' | head -c 10000000\n",
    "brackets.sh": '#!/bin/sh\nwhile :; do cat "$1/brackets"; done\n',
}


def _runs(
    name: str, program: str, says: str, kind: type[FeedqError] = SourceUnavailable, **options: Any
) -> Attack:
    return Attack(name, None, says, kind, {"command": ["{in}/" + program], **options})


FILE: Final = (
    _too_large("file: a file without a line", None, path="{in}/zeros"),
    _attack(
        "file: a file of empty lines",
        None,
        "nothing was added",
        SourceSilent,
        path="{in}/empty",
        idle_timeout_s=1,
    ),
    _attack(
        "file: a file of brackets",
        None,
        "nothing was added",
        SourceSilent,
        path="{in}/brackets",
        idle_timeout_s=1,
    ),
)
EXEC: Final = (
    _runs("exec: a line without an end", "lines.sh", "raise source.max_record_bytes", FeedMisconfigured),
    _runs("exec: complaints without an end", "complains.sh", "exit status 3"),
    _runs("exec: empty lines", "empty.sh", "ended", cursor="/seq"),
)

ATTACKS: Final = (*TCP, *WEBSOCKET, *HTTP, *SSE, *REDIS, *MQTT, *NATS, *FILE, *EXEC)

# -- honest sources at their limits ------------------------------------------------------------------------

_TRADES: Final = b",".join(
    b'{"seq":%d,"pair":"BTC-USD","price":"27123.45","qty":0.5,"side":"buy","x":{"y":[1]}}' % n
    for n in range(180_000)
)
"""A list that fills an answer of the largest size allowed by default."""
_LINE: Final = BRACKETS + b"\n"


def _delivers_brackets(reply: bytes, sid: bytes) -> Script:
    return says(b"".join(record_of_stream(sid, seq, BRACKETS) for seq in range(1, 6)))


HONEST: Final = (
    _goes_on("tcp: records of the largest size", says(b"", _LINE), cursor="/seq"),
    _goes_on("tcp: records of a byte", says(b"", b"1\n"), cursor="/seq"),
    _goes_on(
        "tcp: records with a length",
        says(b"", len(BRACKETS).to_bytes(4) + BRACKETS),
        framing="length",
        cursor="/seq",
    ),
    _goes_on(
        "websocket: messages of the largest size",
        websocket(b"", frame(BRACKETS)),
        cursor="/seq",
        ignore=[{"/x": 1}],
    ),
    _goes_on("http: a stream of records of the largest size", http(b"", b"", _LINE), cursor="/seq"),
    _goes_on(
        "http: answers of the largest size, of many records",
        http(b"", b"[" + _TRADES + b"]", measured=True),
        mode="poll",
        records="",
        interval_s=0.1,
        cursor="/seq",
        url="http://{at}/?{cursor}",
    ),
    _goes_on(
        "http: answers of the largest size, of one record",
        http(b"", b"[[" + b"[]," * (5 * MEBIBYTE) + b"[]]]", measured=True),
        mode="poll",
        interval_s=0.1,
        max_record_bytes=2**24,
    ),
    _goes_on(
        "sse: events of the largest size", http(EVENTS, b"", b"data:" + BRACKETS + b"\n\n"), envelope=True
    ),
    _goes_on(
        "redis: entries of the largest size",
        redis(entries(*((b"%d-1" % n, b"*2\r\n" + bulk(b"f") + bulk(BRACKETS)) for n in range(1, 9)))),
        field="f",
        envelope=True,
        max_record_bytes=2**21,
    ),
    _goes_on(
        "mqtt: messages of the largest size",
        mqtt(b"", publish(BRACKETS)),
        envelope=True,
        max_record_bytes=2**21,
    ),
    _goes_on(
        "nats: messages of the largest size",
        nats(pulled=_delivers_brackets),
        envelope=True,
        max_record_bytes=2**21,
    ),
    _goes_on("file: records of the largest size", None, path="{in}/brackets"),
    _goes_on("exec: records of the largest size", None, command=["{in}/brackets.sh", "{in}"], cursor="/seq"),
)
"""Records and answers of the largest size that the defaults allow."""


def prepare(directory: str) -> None:
    """The files and programs of those that are no servers."""
    for name, text in _PROGRAMS.items():
        path = os.path.join(directory, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)
    os.mkfifo(os.path.join(directory, "pipe"))
    for name, content, size in (
        ("zeros", b"\0", 2**28),
        ("empty", b"\n", 2**22),
        ("brackets", BRACKETS + b"\n", 2**24),
    ):
        with open(os.path.join(directory, name), "wb") as file:
            if name == "zeros":
                file.truncate(size)
            else:
                file.write(content * (size // len(content)))
