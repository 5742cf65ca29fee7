"""Honest sources at their limits: records and answers of the largest size that the defaults allow."""

from __future__ import annotations

from typing import Any, Final

from tests.contract.websocket_server import frame
from tests.hostile.attacks import BRACKETS, EVENTS, Attack
from tests.hostile.speaking import (
    MEBIBYTE,
    Script,
    bulk,
    entries,
    http,
    mqtt,
    nats,
    publish,
    record_of_stream,
    redis,
    says,
    websocket,
)

_TRADES: Final = b",".join(
    b'{"seq":%d,"pair":"BTC-USD","price":"27123.45","qty":0.5,"side":"buy","x":{"y":[1]}}' % n
    for n in range(180_000)
)
"""A list that fills an answer of the largest size allowed by default."""
_LINE: Final = BRACKETS + b"\n"


def _honest(name: str, script: Script | None, **options: Any) -> Attack:
    return Attack(name, script, "", options=options, goes_on=True)


def _delivers_brackets(reply: bytes, sid: bytes) -> Script:
    return says(b"".join(record_of_stream(sid, seq, BRACKETS) for seq in range(1, 6)))


HONEST: Final = (
    _honest("tcp: records of the largest size", says(b"", _LINE), cursor="/seq"),
    _honest("tcp: records of a byte", says(b"", b"1\n"), cursor="/seq"),
    _honest(
        "tcp: records with a length",
        says(b"", len(BRACKETS).to_bytes(4) + BRACKETS),
        framing="length",
        cursor="/seq",
    ),
    _honest(
        "websocket: messages of the largest size",
        websocket(b"", frame(BRACKETS)),
        cursor="/seq",
        ignore=[{"/x": 1}],
    ),
    _honest("http: a stream of records of the largest size", http(b"", b"", _LINE), cursor="/seq"),
    _honest(
        "http: answers of the largest size, of many records",
        http(b"", b"[" + _TRADES + b"]", measured=True),
        mode="poll",
        records="",
        interval_s=0.1,
        cursor="/seq",
        url="http://{at}/?{cursor}",
    ),
    _honest(
        "http: answers of the largest size, of one record",
        http(b"", b"[[" + b"[]," * (5 * MEBIBYTE) + b"[]]]", measured=True),
        mode="poll",
        interval_s=0.1,
        max_record_bytes=2**24,
    ),
    _honest(
        "sse: events of the largest size", http(EVENTS, b"", b"data:" + BRACKETS + b"\n\n"), envelope=True
    ),
    _honest(
        "redis: entries of the largest size",
        redis(entries(*((b"%d-1" % n, b"*2\r\n" + bulk(b"f") + bulk(BRACKETS)) for n in range(1, 9)))),
        field="f",
        envelope=True,
        max_record_bytes=2**21,
    ),
    _honest(
        "mqtt: messages of the largest size",
        mqtt(b"", publish(BRACKETS)),
        envelope=True,
        max_record_bytes=2**21,
    ),
    _honest(
        "nats: messages of the largest size",
        nats(pulled=_delivers_brackets),
        envelope=True,
        max_record_bytes=2**21,
    ),
    _honest("file: records of the largest size", None, path="{in}/brackets"),
    _honest("exec: records of the largest size", None, command=["{in}/brackets.sh", "{in}"], cursor="/seq"),
)
