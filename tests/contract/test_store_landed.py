"""What feeds have landed over the last hour and day, out of counters that are written down once a minute."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest

from feedq.control.store.landed_counts import Span
from feedq.control.store.postgresql import PostgresStore
from feedq.core.model import Feed
from tests.contract.harness import Harness


@pytest.fixture(autouse=True)
def early_in_a_minute(harness: Harness) -> None:
    """A minute that ended between two counts of a test would be one that was missed."""
    late = "SELECT extract(second FROM clock_timestamp()) > 40"
    while harness.execute(late) == [(True,)]:
        sleep(0.2)


def land(harness: Harness, feed: Feed, rows: int, *, dead: int = 0) -> None:
    """As its worker would report it."""
    harness.execute(
        "UPDATE feedq.progress SET records_total = records_total + %s, "
        "dead_letters_total = dead_letters_total + %s, "
        "last_record_at = CASE WHEN %s > 0 THEN clock_timestamp() ELSE last_record_at END WHERE feed_id = %s",
        rows,
        dead,
        rows,
        feed.id,
    )


def next_minute(harness: Harness, minutes: int = 1) -> None:
    """Let the last count have been in the middle of this minute, however late in it that was, and minutes pass."""
    # Not all in the same moment of a minute: on their way back one row must not meet another.
    harness.execute(
        "UPDATE feedq.landed_count "
        "SET at = date_trunc('minute', clock_timestamp()) + make_interval(secs => 30 + 5 * random()) "
        "WHERE at = (SELECT max(at) FROM feedq.landed_count)"
    )
    harness.elapse(60 * minutes)


def known(harness: Harness, feed: Feed, span: Span = Span.HOUR) -> list[int]:
    return [one.rows for one in harness.store.landed.of_feed(feed.id, span) if one.rows is not None]


def counted_rows(harness: Harness) -> int:
    ((count,),) = harness.execute("SELECT count(*) FROM feedq.landed_count")
    assert isinstance(count, int)
    return count


def pass_minutes(harness: Harness, feed: Feed, minutes: int, *, rows: int) -> None:
    for _ in range(minutes):
        harness.store.landed.count()
        land(harness, feed, rows)
        next_minute(harness)


def test_what_landed_is_told_minute_by_minute(harness: Harness) -> None:
    feed = harness.feed()
    for landed, dead in ((10, 0), (0, 0), (7, 2)):
        harness.store.landed.count()
        land(harness, feed, landed, dead=dead)
        next_minute(harness)
    harness.store.landed.count()
    found = harness.store.landed.of_feed(feed.id, Span.HOUR)
    assert len(found) == Span.HOUR.buckets
    assert [one.rows for one in found[-3:]] == [10, 0, 7]
    assert [one.dead_letters for one in found[-3:]] == [0, 0, 2]
    silent = [one.silent_s or 0.0 for one in found[-3:]]
    assert silent[1] > silent[0] > 0
    assert silent[1] > silent[2] > 0
    assert {one.rows for one in found[:-3]} == {None}


def test_a_minute_is_counted_once_however_many_beats_there_are(
    harness: Harness, control_database_url: str
) -> None:
    harness.feed()
    others = [PostgresStore(control_database_url) for _ in range(4)]
    try:
        with ThreadPoolExecutor(len(others)) as threads:
            list(threads.map(lambda store: store.landed.count(), others * 3))
        harness.store.landed.count()
        # Two, if a minute has just begun.
        assert harness.execute(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM feedq.landed_count GROUP BY date_trunc('minute', at)) x"
        ) == [(1,)]
    finally:
        for store in others:
            store.close()


def test_a_beat_that_ends_before_it_commits_has_counted_nothing(harness: Harness) -> None:
    feed = harness.feed()
    pass_minutes(harness, feed, 2, rows=10)
    harness.execute(
        "CREATE FUNCTION feedq.end_me() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END'"
    )
    harness.execute(
        "CREATE TRIGGER end_me AFTER INSERT ON feedq.landed_count FOR EACH ROW EXECUTE FUNCTION feedq.end_me()"
    )
    before = counted_rows(harness)
    with pytest.raises(Exception, match=r"terminat|closed"):
        harness.store.landed.count()
    harness.execute("DROP FUNCTION feedq.end_me CASCADE")
    assert counted_rows(harness) == before
    harness.store.landed.count()
    assert known(harness, feed) == [10, 10]


def test_a_feed_that_is_declared_anew_begins_anew(harness: Harness) -> None:
    feed = harness.feed()
    pass_minutes(harness, feed, 1, rows=10)
    harness.execute("UPDATE feedq.progress SET records_total = 3")
    harness.store.landed.count()
    assert known(harness, feed) == [3]
    harness.store.feeds.remove(feed.name)
    harness.reconcile()
    again = harness.feed(feed.name)
    assert known(harness, again) == []


def test_an_hour_by_minutes_and_a_day_by_quarters_are_kept_and_no_more(
    harness: Harness,
) -> None:
    feed = harness.feed()
    # As 1,600 minutes, in which a row landed each, have left it: all of them, before anything is deleted.
    harness.execute(
        "INSERT INTO feedq.landed_count (chunk, at, daily, places, records, dead_letters, silent_s) "
        "SELECT %s, at, date_bin('15 minutes', at, 'epoch') = date_trunc('minute', at), "
        "ARRAY[%s::smallint], ARRAY[2000 - n], ARRAY[0], ARRAY[NULL::real] FROM generate_series(1, 1600) n, "
        "LATERAL (SELECT date_trunc('minute', clock_timestamp()) + interval '30s' "
        "- make_interval(mins => n)) x (at)",
        feed.id // 1000,
        feed.id % 1000,
    )
    land(harness, feed, 2000)
    harness.store.landed.count()
    assert known(harness, feed) == [1] * 60
    # The quarter that has just begun is not counted in every case.
    assert known(harness, feed, Span.DAY)[:95] == [15] * 95
    assert harness.execute("SELECT count(*) <= 61 FROM feedq.landed_count WHERE NOT daily") == [(True,)]
    assert harness.execute("SELECT count(*) <= 98 FROM feedq.landed_count WHERE daily") == [(True,)]
    harness.elapse(86_400 + 900)
    harness.store.landed.count()
    assert counted_rows(harness) == 1


def test_feeds_of_a_page_are_read_together(harness: Harness) -> None:
    near = harness.feed("near")
    harness.execute("SELECT setval(pg_get_serial_sequence('feedq.feed', 'id'), %s)", 5_000)
    far = harness.feed("far")
    harness.store.landed.count()
    land(harness, near, 6)
    land(harness, far, 9)
    next_minute(harness)
    harness.store.landed.count()
    found = harness.store.landed.of_feeds([far.id, near.id, 10**12], minutes=30)
    assert {feed_id: len(buckets) for feed_id, buckets in found.items()} == dict.fromkeys(
        (far.id, near.id, 10**12), 30
    )
    assert [found[one.id][-1].rows for one in (near, far)] == [6, 9]
    assert {one.rows for one in found[10**12]} == {None}
