"""Messages as somebody forges them: honest ones of Celery's two protocols, spoilt in a few places.

What comes out depends on the seed alone. The same message can be laid into a list of Redis (`envelope`) or be
published to RabbitMQ.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import uuid4

from celery import Celery

TASKS = ("feedq.stream_feed", "feedq.reconcile", "feedq.unheard_of", "celery.accumulate")
CONTROL = (
    "ping",
    "stats",
    "revoke",
    "rate_limit",
    "time_limit",
    "query_task",
    "add_consumer",
    "hello",
    "election",
)
CONTENT_TYPES = (
    "application/json",
    "application/x-python-serialize",
    "application/x-yaml",
    "application/data",
    "x",
)
AMQP = Celery("forged", set_as_current=False).amqp
"""Makes the honest messages."""
DEEP = 3_000
"""Deeper than any decoder goes; in one piece a header of RabbitMQ could not hold more."""


JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**31,
    2**63 - 1,
    0.5,
    1e308,
    "",
    "x",
    "\x00\n",
    "ä" * 300,
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999-14:00",
    "2020-02-30T00:00:00",
    [],
    [1],
    [None, None],
    ["x", {"a": [1]}],
    {},
    {"a": 1},
    {"task": 5},
    [{"task": "x", "args": 5}],
    {"__type__": "datetime", "__value__": "never"},
    {"__type__": "uuid", "__value__": {"hex": "z"}},
)
ARGUMENTS = (
    *(
        ("add_consumer", "queue"),
        ("revoke", "task_id"),
        ("rate_limit", "task_name"),
        ("time_limit", "task_name"),
    ),
    *(
        ("query_task", "ids"),
        ("hello", "revoked"),
        ("election", "topic"),
        ("pool_grow", "n"),
        ("autoscale", "max"),
    ),
    *(("heartbeat", "x"), ("revoke_by_stamped_headers", "headers"), ("terminate", "task_id")),
)


@dataclass(frozen=True, slots=True)
class Forged:
    """One message, before a transport has wrapped it."""

    body: bytes
    headers: Any
    content_type: Any = "application/json"
    content_encoding: Any = "utf-8"
    properties: Any = None


def junk(rng: Random) -> Any:
    """Some value that nobody expects."""
    return rng.choice(JUNK)


def task(rng: Random) -> Forged:
    """A task of either protocol with something wrong about it, most of the time."""
    return _first_protocol(rng) if rng.random() < 0.3 else _second_protocol(rng)


def commands() -> Iterator[Forged]:
    """Remote control in its own form, with arguments that nobody expects."""
    for method, name in ARGUMENTS:
        for value in JUNK:
            body = {"method": method, "arguments": {name: value}, "destination": None}
            yield Forged(json.dumps(body).encode(), {"clock": 1})


def control(rng: Random) -> Forged:
    """A message of remote control, or an event."""
    body: dict[str, Any] = {
        "method": rng.choice(CONTROL),
        "arguments": {rng.choice(("task_id", "task_name", "queue", "ids", "x", "revoked")): junk(rng)},
        "destination": None,
        "pattern": None,
        "matcher": None,
        "type": "worker-heartbeat",
        "hostname": "other@forged",
        "clock": 1,
    }
    _spoil(body, rng)
    if rng.random() < 0.3:
        body["reply_to"] = rng.choice([junk(rng), {"exchange": junk(rng), "routing_key": junk(rng)}])
    headers = {
        "clock": rng.choice([1, junk(rng)]),
        "expires": junk(rng),
        "hostname": rng.choice(["x", junk(rng)]),
    }
    return Forged(rng.choice([json.dumps(body).encode(), _wrong_body(rng)]), headers)


def envelope(message: Forged, rng: Random | None, *, routing_key: str) -> bytes:
    """As kombu lays a message into Redis; with ``rng`` it is spoilt now and then."""
    info = {"exchange": "", "routing_key": routing_key}
    properties = {
        "correlation_id": "x",
        "reply_to": "y",
        "delivery_mode": 2,
        "delivery_info": info,
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": f"forged-{uuid4()}",
        **(message.properties or {}),
    }
    whole = {
        "body": base64.b64encode(message.body).decode(),
        "content-encoding": message.content_encoding,
        "content-type": message.content_type,
        "headers": message.headers,
        "properties": properties,
    }
    if rng is not None and rng.random() < 0.2:
        _spoil(rng.choice([whole, properties, info]), rng)
    text = json.dumps(whole).encode()
    if rng is not None and rng.random() < 0.05:
        place = rng.randrange(len(text))
        return text[:place] + rng.randbytes(3) + text[place + 3 :]
    return text


def raw(rng: Random) -> Iterator[bytes]:
    """What is no message of kombu at all, for Redis."""
    yield from (b"garbage", b"{}", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b"9" * 10_000, b"[" * 100_000)
    yield from (
        b'{"a":' * 50_000,
        b"\x00",
        json.dumps({"body": "x", "properties": {}, "headers": {}}).encode(),
    )
    yield rng.randbytes(1_000)


def _first_protocol(rng: Random) -> Forged:
    honest = AMQP.as_task_v1(f"{rng.getrandbits(64):x}", rng.choice(TASKS), args=[1, 1], kwargs={})
    body: dict[str, Any] = dict(honest.body)
    for _ in range(rng.randrange(1, 4)):
        _spoil(body, rng)
    return Forged(
        json.dumps(body).encode(), rng.choice([{}, {}, {"task": rng.choice(TASKS)}, {"lang": junk(rng)}])
    )


def _second_protocol(rng: Random) -> Forged:
    honest = AMQP.as_task_v2(
        f"{rng.getrandbits(64):x}",
        rng.choice(TASKS),
        args=[1, 1],
        kwargs={},
        origin="forged",
        ignore_result=True,
    )
    headers: dict[str, Any] = dict(honest.headers)
    parts: list[Any] = [*honest.body]
    embed: dict[str, Any] = parts[2]
    properties: dict[str, Any] = {}
    body: bytes | None = None
    kind: dict[str, Any] = {}
    for _ in range(rng.randrange(1, 4)):
        match rng.randrange(8):
            case 0:
                parts[rng.randrange(3)] = junk(rng)
            case 1:
                body = _wrong_body(rng)
            case 2:
                _spoil(embed, rng)
            case 3:
                properties[rng.choice(("correlation_id", "reply_to"))] = rng.choice(["", "x" * 200])
            case 4:
                kind = {"content_type": rng.choice(CONTENT_TYPES)}
            case 5:
                headers["compression"] = rng.choice(("zlib", "gzip", "bzip2", "lzma", "nope", 5, [1]))
            case 6:
                headers[rng.choice(("get", "update", "__class__", "args", "delivery_info", "hostname"))] = (
                    junk(rng)
                )
            case _:
                _spoil(headers, rng)
    if body is None:
        body = json.dumps(parts).encode()
    return Forged(body, headers, properties=properties, **kind)


def _wrong_body(rng: Random) -> bytes:
    return rng.choice(
        [
            *(
                b"{}",
                b"1",
                b"[1]",
                b"null",
                b'"x"',
                b"",
                b"[]",
                b"{",
                b"\xff",
                b"[[1],{},{},{}]",
                b"NaN",
                b"[NaN,{},{}]",
            ),
            *(b"[[],{},1]", b"[[],{},null]", b"[{},{},{}]", b"[[],[],[]]", b'["args",{},{}]', b'{"args":1}'),
            *(b"9" * 5_000, b"[" * DEEP + b"]" * DEEP, b"[[" + b"[" * DEEP + b"]" * DEEP + b"],{},{}]"),
            zlib.compress(b"[[],{},{}]"),
            rng.randbytes(30),
        ]
    )


def _spoil(fields: dict[str, Any], rng: Random) -> None:
    name = rng.choice(sorted(fields))
    if rng.random() < 0.15:
        del fields[name]
    else:
        fields[name] = junk(rng)
