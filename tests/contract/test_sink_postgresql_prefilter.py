"""Feeds with bad records among the good: quick looks change nothing of what the database decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from feedq.core.model import Batch
from feedq.local.postgres import Postgres
from feedq.sinks.base import Target
from feedq.sinks.mapping import sources_of
from tests.contract.sink_harness import PostgresSinkHarness, batch, empty_database, fence, lines, write

BAD = (
    *(b"", b"{", b"[1,2", b"3]", b"1 2", b"01", b"NaN"),
    *(b'"\\u0000"', b'"\\ud800"', b'"\\q"', b'"\xff"', b'"a\0b"'),
)
"""Bad for somebody at least: text takes most, and json some."""
ODD = (
    *(b'"\\\\u0000"', b'"\\ud83d\\ude00"', '"\u20ac"'.encode()),
    *(b"[" * 3_000 + b"]" * 3_000, b"1e400", b' "x" '),
)
"""Good ones that a quick look may take for bad."""
GOOD = (b"1", b'{"a": 1}', b"[1, 2]", b'"text"', b"null")


@pytest.fixture
def harness(postgres: Postgres) -> Iterator[PostgresSinkHarness]:
    made = PostgresSinkHarness(empty_database(postgres))
    yield made
    made.close()


@contextmanager
def judge(harness: PostgresSinkHarness) -> Iterator[Any]:
    """Asks the database about a payload, by itself and without any code of feedq's."""
    with harness.session() as cursor:

        def takes(record: bytes, kind: str) -> bool:
            try:
                cursor.execute(f"SELECT convert_from(%s, 'UTF8')::{kind}", (record,))
            except psycopg2.Error:
                return False
            return True

        yield takes


records = st.lists(st.sampled_from([*BAD, *ODD, *GOOD, *GOOD, *GOOD]), min_size=1, max_size=60)


@pytest.mark.parametrize(("format_", "kind"), [("json", "jsonb"), ("json", "json"), ("text", "text")])
def test_a_spoiled_feed_lands_what_the_database_takes_and_nothing_else(
    harness: PostgresSinkHarness, format_: Any, kind: str
) -> None:
    harness.query(f"CREATE TABLE raw (feed text, epoch bigint, received_at timestamptz, payload {kind})")
    target = Target("raw", format_)
    sink = harness.sink()
    fence(sink, 1, 1, target)

    @settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
    @given(records=records, as_lines=st.booleans())
    @example(records=[*BAD, *ODD, *GOOD], as_lines=True)
    def check(records: list[bytes], as_lines: bool) -> None:
        if as_lines:
            records = [r for r in records if r] or [b"1"]
        group: Batch = lines(*records, cursor=1) if as_lines else batch(*records, cursor=1)
        harness.query("TRUNCATE raw, feedq_dead_letter")
        written = sink.write([write(1, 1, group, target=target)])
        with judge(harness) as takes:
            good = [r for r in records if takes(r, kind)]
            bad = [r for r in records if not takes(r, kind)]
        assert written.landed == {(1, 1): len(good)}
        assert written.dead.get((1, 1), 0) == len(bad)
        expected = Counter(
            harness.query(
                f"SELECT x::{kind}::text FROM unnest(%s::text[]) AS x", ([r.decode() for r in good],)
            )
        )
        assert Counter(harness.query("SELECT payload::text FROM raw")) == expected
        assert [bytes(r) for (r,) in harness.query("SELECT record FROM feedq_dead_letter ORDER BY id")] == bad

    check()
    assert sink._recently_refused, "the quick look was never taken"


def test_a_feed_with_refused_records_is_prefiltered_before_it_fails_a_group(
    harness: PostgresSinkHarness,
) -> None:
    sink = harness.sink(url=harness.proxy.url)
    fence(sink, 1, 1)
    sink.write([write(1, 1, lines(b"1", b"bad", cursor=1))])
    harness.proxy.seen.clear()
    written = sink.write([write(1, 1, lines(b"2", b"bad", b"3", cursor=2))])
    assert (written.landed, written.dead) == ({(1, 1): 2}, {(1, 1): 1})
    assert harness.proxy.seen["COPY"] == 2, "one for the rows, one for the dead letters"
    assert harness.proxy.seen["BEGIN"] == 1


def test_a_feed_that_is_good_again_is_no_longer_prefiltered(
    harness: PostgresSinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.sinks.transactional.PREFILTER_S", 0.0)
    sink = harness.sink()
    fence(sink, 1, 1)
    sink.write([write(1, 1, lines(b"1", b"bad", cursor=1))])
    assert not sink._recently_refused


@pytest.mark.parametrize("after", [b"{}", b"bad"])
def test_records_that_only_the_table_refuses_are_found_behind_those_that_any_would(
    harness: PostgresSinkHarness, after: bytes
) -> None:
    harness.query("CREATE TABLE typed (n smallint CHECK (n <> 13))")
    target = Target("typed", "json", sources_of({"n": "/n"}))
    sink = harness.sink()
    fence(sink, 1, 1, target)
    sink.write([write(1, 1, lines(b"bad", cursor=0), target=target)])
    group = [b'{"n": 1}', after, b'{"n": 13}', b'{"n": 70000}', b'{"n": 2}', b"worse"]
    written = sink.write([write(1, 1, lines(*group, cursor=1), target=target)])
    bad = [r for r in (after, *group[2:4], group[5]) if r != b"{}"]
    assert written.dead == {(1, 1): len(bad)}
    assert sorted(record for _, _, record, _ in harness.dead()) == sorted([b"bad", *bad])
    assert harness.query("SELECT n FROM typed WHERE n IS NOT NULL ORDER BY n") == [(1,), (2,)]
