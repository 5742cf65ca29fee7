"""Records into PostgreSQL: formats, columns, keys, and whatever bytes a source may send."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from feedq.local.postgres import Postgres
from feedq.records.framing import RecordFormat
from feedq.sinks import prefilter
from feedq.sinks.base import Target
from feedq.sinks.mapping import sources_of
from tests.contract.sink_harness import (
    PostgresSinkHarness,
    batch,
    empty_database,
    fence,
    write,
)

TYPED = Target(
    "orders", "json", sources_of({"seq": "/seq", "at": "/ts", "sku": "/lines/0/sku", "payload": ""})
)
KEYED = Target("orders", "json", TYPED.columns, ("seq",))
ORDERS = "CREATE TABLE orders (seq bigint, at timestamptz, sku varchar(5), payload jsonb)"


@pytest.fixture
def harness(postgres: Postgres) -> Iterator[PostgresSinkHarness]:
    made = PostgresSinkHarness(empty_database(postgres))
    yield made
    made.close()


# -- formats -----------------------------------------------------------------------------------------

NASTY = [
    b"",
    b"\\N",
    b"\\.",
    b"a\tb",
    b"a\\tb\\",
    b"\x01\x7f\x1f",
    "ö😀\u2028".encode(),
    b"'; DROP TABLE raw; --",
    b'"quoted", "csv"',
    b"cr\rlf\n",
    b" spaces ",
]
INVALID = [b"nul\x00nul", b"\xff\xfe", b"\xed\xa0\x80", b"cut \xf0\x9f\x98"]


@pytest.mark.parametrize("record_format", ["text", "bytes"])
def test_any_bytes_land_as_they_are_or_go_to_the_dead_letters(
    harness: PostgresSinkHarness, record_format: RecordFormat
) -> None:
    target = Target("raw", record_format)
    sink = harness.sink()
    fence(sink, 1, 1, target)
    written = sink.write([write(1, 1, batch(*NASTY, *INVALID), target=target)])
    shown = harness.query("SELECT payload FROM raw")
    if record_format == "text":
        assert [text.encode() for (text,) in shown] == NASTY
        assert [record for _, _, record, _ in harness.dead()] == INVALID
        assert written.dead == {(1, 1): len(INVALID)}
    else:
        assert [bytes(payload) for (payload,) in shown] == NASTY + INVALID
        assert written.dead == {}


# -- columns -----------------------------------------------------------------------------------------


def order(seq: object, sku: object = "a", **more: object) -> bytes:
    return json.dumps({"seq": seq, "ts": "2026-11-20T06:30:00Z", "lines": [{"sku": sku}], **more}).encode()


WRONG = [
    (order("seven"), 'invalid input syntax for type bigint: "seven"'),
    (order(2**63), "out of range for type bigint"),
    (order(5, "too long"), "value too long for type character varying(5)"),
    (order(5, "\0"), 'invalid byte sequence for encoding "UTF8": 0x00'),
    (order(5, note="\0"), "unsupported Unicode escape sequence"),
    (b'{"seq": 1, "ts": "yesterday-ish"}', "invalid input syntax for type timestamp"),
    (b'{"seq": 1', "invalid JSON"),
    (b'{"seq": "\xff"}', "invalid UTF-8"),
    (b'{"seq": 1, "ts": "\\ud800"}', "surrogates not allowed"),
    (b"", "invalid JSON"),
]


@pytest.mark.parametrize("asks", [True, False], ids=["input functions", "trial"])
@pytest.mark.parametrize("target", [TYPED, KEYED], ids=["plain", "keyed"])
def test_records_that_no_column_takes_go_to_the_dead_letters_with_why(
    harness: PostgresSinkHarness, monkeypatch: pytest.MonkeyPatch, target: Target, asks: bool
) -> None:
    if not asks:
        # As on a server before PostgreSQL 16, which cannot be asked about inputs.
        monkeypatch.setattr(prefilter, "ASKS_INPUT_FUNCTIONS", 10**9)
    harness.query(ORDERS + "; CREATE UNIQUE INDEX ON orders (seq)")
    sink = harness.sink()
    fence(sink, 1, 1, target)
    records = [r for n, (bad, _) in enumerate(WRONG) for r in (order(100 + n), bad)] + [order(200)]
    written = sink.write([write(1, 1, batch(*records), target=target)])
    assert (written.landed, written.dead) == ({(1, 1): len(WRONG) + 1}, {(1, 1): len(WRONG)})
    assert harness.query("SELECT count(*), count(DISTINCT seq) FROM orders") == [(len(WRONG) + 1,) * 2]
    errors = {letter.record: letter.error for letter in harness.sink().dead_letters()}
    for record, why in WRONG:
        assert why in errors[record], errors[record]


def test_a_source_gone_wrong_does_not_cost_an_attempt_for_each_record(harness: PostgresSinkHarness) -> None:
    harness.query(ORDERS)
    sink = harness.sink(url=harness.proxy.url)
    fence(sink, 1, 1, TYPED)
    wrong = [order("x"), order(1, "too long"), order(1, "\0"), b"garbage", b"\xff"]
    written = sink.write([write(1, 1, batch(*wrong * 2_000, order(1)), target=TYPED)])
    assert (written.landed, written.dead) == ({(1, 1): 1}, {(1, 1): 10_000})
    assert harness.proxy.seen["COPY"] < 10


# -- keys --------------------------------------------------------------------------------------------


def test_many_keyed_landings_share_a_session(
    harness: PostgresSinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.sinks.postgresql.STAGING_TABLES_MAX", 3)
    sink = harness.sink()
    targets = [Target(f"dedup_{n}", "text", (), ("payload",)) for n in range(7)]
    for n, target in enumerate(targets):
        fence(sink, n, 1, target)
    for groups in ([targets], [[target] for target in targets], [targets[:2], targets[4:6]] * 2):
        for group in groups:
            sink.write([write(targets.index(x), 1, batch(b"x"), target=x) for x in group])
    assert all(harness.landed(target).total() == 1 for target in targets)
