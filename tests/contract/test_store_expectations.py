"""What is expected of feeds, judged in the database: what is unmet, since when, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from feedq.control.store.expectations import Judged
from feedq.core.expectations import read_expectations
from feedq.core.model import Feed, TargetState
from tests.asking import events_of
from tests.contract.harness import Harness, progress

SILENCE = {"max_silence": "60s"}
LAG = {"max_event_lag": {"at": "/ts", "seconds": 60}}


class Bench:
    """A fleet with feeds that land what a test says."""

    def __init__(self, harness: Harness) -> None:
        self.harness, self.store = harness, harness.store
        self.everything: Mapping[str, Any] = {}
        self.tenants: dict[str, Mapping[str, Any]] = {}

    def feed(self, name: str = "acme/a", expect: Mapping[str, Any] | None = None, **spec: object) -> Feed:
        return self.harness.feed(name, expect=read_expectations(expect or {}), **spec)

    def land(self, feed: Feed, rows: int, *, dead: int = 0) -> None:
        """As its worker would report it."""
        self.harness.execute(
            "UPDATE feedq.progress SET records_total = records_total + %s, "
            "dead_letters_total = dead_letters_total + %s, last_record_at = clock_timestamp() WHERE feed_id = %s",
            rows,
            dead,
            feed.id,
        )

    def judge(self) -> Judged:
        everything = read_expectations(self.everything)
        tenants = {name: read_expectations(one) for name, one in self.tenants.items()}
        return self.store.expectations.judge(everything, tenants)

    def unmet(self, name: str = "acme/a") -> list[str]:
        return [one.said for one in self.store.feeds.view(name).unmet]

    def alerts(self) -> list[tuple[object, ...]]:
        return self.harness.execute("SELECT feed, kind, begins FROM feedq.alert ORDER BY id")

    def kinds(self, name: str = "acme/a") -> list[str]:
        return [event.kind for event in events_of(self.store, name) if event.kind.startswith("expect")]


@pytest.fixture
def bench(harness: Harness) -> Bench:
    return Bench(harness)


def test_silence_is_told_once_and_so_is_its_end(bench: Bench) -> None:
    feed = bench.feed(expect=SILENCE)
    bench.land(feed, 1)
    bench.harness.elapse(59)
    assert bench.judge() == Judged()
    bench.harness.elapse(2)
    assert [bench.judge() for _ in range(3)] == [Judged(begun=1), Judged(), Judged()]
    assert bench.unmet() == ["silent for more than 1m"]
    (unmet,) = bench.store.feeds.view(feed.name).unmet
    assert (bench.store.now() - unmet.since).total_seconds() == pytest.approx(61, abs=5)
    bench.land(feed, 1)
    assert [bench.judge() for _ in range(2)] == [Judged(ended=1), Judged()]
    assert bench.unmet() == []
    assert bench.alerts() == [("acme/a", "max_silence", True), ("acme/a", "max_silence", False)]
    assert bench.kinds() == ["expectation_met", "expectation_unmet"]


def test_a_silence_does_not_end_with_a_report_that_dates_the_last_record_later(bench: Bench) -> None:
    feed = bench.feed(expect=SILENCE)
    worker = bench.harness.worker()
    key = bench.harness.run(feed, worker)
    bench.store.leases.report(worker.id, [progress(key, last_record_ago_s=0.0)])
    bench.harness.elapse(61)
    assert bench.judge() == Judged(begun=1)
    for ago_s in (58.0, 61.0):
        bench.store.leases.report(worker.id, [progress(key, last_record_ago_s=ago_s)])
        assert bench.judge() == Judged()
    # One that was held up, as that of a worker that was frozen, and the one after it.
    bench.store.leases.report(worker.id, [progress(key, last_record_ago_s=0.0)])
    assert bench.judge() == Judged(ended=1)
    bench.store.leases.report(worker.id, [progress(key, last_record_ago_s=61.0)])
    assert bench.judge() == Judged()


def test_a_silence_that_may_be_longer_now_ends(bench: Bench) -> None:
    feed = bench.feed()
    bench.everything = SILENCE
    bench.land(feed, 1)
    bench.harness.elapse(61)
    assert bench.judge() == Judged(begun=1)
    bench.everything = {"max_silence": "5m"}
    assert bench.judge() == Judged(ended=1)


def test_the_nearest_that_says_something_counts(bench: Bench) -> None:
    bench.everything, bench.tenants = {"max_silence": "60s"}, {"quiet": {"max_silence": "1h"}}
    bench.feed("a")
    bench.feed("b", tenant="quiet")
    bench.feed("c", {"max_silence": "5m"})
    bench.feed("d", {"max_silence": "none"})
    bench.feed("e", {"max_silence": "30s"}, tenant="quiet")
    bench.harness.elapse(61)
    bench.judge()
    assert [name for name in "abcde" if bench.unmet(name)] == ["a", "e"]
    bench.everything = {}
    assert bench.judge() == Judged(ended=1)


def test_of_a_feed_that_is_paused_or_removed_nothing_is_expected(bench: Bench) -> None:
    for name in ("a", "b"):
        bench.feed(name, SILENCE)
    bench.harness.elapse(61)
    assert bench.judge() == Judged(begun=2)
    bench.store.feeds.set_target("a", TargetState.PAUSED)
    bench.store.feeds.remove("b")
    assert bench.judge() == Judged(ended=2)
    bench.harness.elapse(61)
    assert bench.judge() == Judged()
    bench.store.feeds.set_target("a", TargetState.RUNNING)
    assert bench.judge() == Judged()  # the pause was no silence of its source
    bench.harness.elapse(61)
    assert bench.judge() == Judged(begun=1)


def test_rows_within_a_time_are_counted_from_samples(bench: Bench) -> None:
    feed = bench.feed(expect={"min_rows": {"per": "60s", "rows": 100}})
    for _ in range(8):
        bench.land(feed, 20)
        assert bench.judge() == Judged()
        bench.harness.elapse(11)
    assert bench.unmet() == []
    for _ in range(8):
        bench.land(feed, 5)
        bench.judge()
        bench.harness.elapse(11)
    (said,) = bench.unmet()
    assert said.endswith("rows within 1m, not 100")
    for _ in range(8):
        bench.land(feed, 20)
        bench.judge()
        bench.harness.elapse(11)
    assert bench.unmet() == []
    assert [begins for _, _, begins in bench.alerts()] == [True, False]
    assert bench.harness.execute("SELECT count(*) < 12 FROM feedq.landed_sample") == [(True,)]


def test_rows_near_the_bound_are_told_once(bench: Bench) -> None:
    feed = bench.feed(expect={"min_rows": {"per": "60s", "rows": 100}})
    found = []
    for rows in (20, 20, 20, 20, 20, 20, 20, 10, 0, 20, 20, 20, 20, 30, 5):
        bench.land(feed, rows)
        bench.judge()
        found.append(bool(bench.unmet()))
        bench.harness.elapse(11)
    assert found == [False] * 8 + [True] * 7
    assert [begins for _, _, begins in bench.alerts()] == [True]


def test_rows_of_a_time_that_has_not_passed_are_not_missed(bench: Bench) -> None:
    bench.feed(expect={"min_rows": {"per": "60s", "rows": 100}})
    bench.judge()
    bench.harness.elapse(50)
    assert bench.judge() == Judged()
    bench.harness.elapse(12)
    assert bench.judge() == Judged(begun=1)
    assert bench.unmet() == ["0 rows within 1m, not 100"]


def test_a_part_that_is_refused_is_told_as_soon_as_there_is_something_to_tell_by(bench: Bench) -> None:
    feed = bench.feed(expect={"max_refused": "1%"})
    bench.judge()
    bench.land(feed, 10, dead=1)
    assert bench.judge() == Judged()
    bench.land(feed, 180, dead=9)
    assert bench.judge() == Judged(begun=1)
    assert bench.unmet() == ["5% refused, more than 1%"]
    for _ in range(8):
        bench.harness.elapse(30.0 / 5)
        bench.land(feed, 200)
        bench.judge()
    assert bench.unmet() == []


def test_a_part_that_is_refused_near_the_bound_is_told_once(bench: Bench) -> None:
    feed = bench.feed(expect={"max_refused": "1%"})
    bench.judge()
    bench.land(feed, 990, dead=12)
    assert bench.judge() == Judged(begun=1)
    for dead in (0, 12, 4, 12):
        bench.land(feed, 1000, dead=dead)
        assert bench.judge() == Judged()
    bench.land(feed, 10_000)
    assert bench.judge() == Judged(ended=1)


def test_a_lag_is_told_once_with_what_was_wrong_and_ends_well_below_its_bound(bench: Bench) -> None:
    feed = bench.feed(expect=LAG)
    worker = bench.harness.worker()
    key = bench.harness.run(feed, worker)

    def land(ago_s: float | None, fault: str | None = None) -> None:
        at = None if ago_s is None else bench.store.now().timestamp() - ago_s
        landed = progress(key, records=1, has_event_times=True, event_at=at, event_fault=fault)
        bench.store.leases.report(worker.id, [landed])

    bench.harness.elapse(61)
    land(10)
    assert bench.judge() == Judged()
    bench.harness.elapse(51)
    land(90, "it is late")  # an older one takes nothing back
    assert bench.judge() == Judged(begun=1)
    assert bench.unmet() == ["newest event time (/ts) more than 1m ago: it is late"]
    land(50)
    assert bench.judge() == Judged()
    land(29)
    assert [bench.judge() for _ in range(2)] == [Judged(ended=1), Judged()]
    land(-3_600)  # what a clock that is ahead says is not kept
    bench.harness.elapse(61)
    assert bench.judge() == Judged(begun=1)
    bench.harness.elapse(121)
    land(50)  # just within the bound, after twice its time
    assert bench.judge() == Judged(ended=1)
    assert [begins for _, _, begins in bench.alerts()] == [True, False] * 2
    bench.store.leases.report(worker.id, [progress(key, records=1)])
    assert bench.store.feeds.view(feed.name).lease.event_at is None


def test_a_feed_whose_records_have_no_time_lags_since_it_was_declared(bench: Bench) -> None:
    feed = bench.feed(expect=LAG)
    assert bench.judge() == Judged()
    bench.harness.elapse(61)
    bench.land(feed, 5)
    assert bench.judge() == Judged(begun=1)
    assert bench.unmet() == ["newest event time (/ts) more than 1m ago: no record with a time has landed"]


def test_where_a_feed_begins_and_what_is_expected_is_kept_as_it_was_declared(bench: Bench) -> None:
    expect = {"max_silence": "5m", "max_refused": "none", "min_rows": {"per": "1h", "rows": 7}}
    feed = bench.feed(expect=expect, initial_cursor={"at": 2**70})
    kept = bench.store.feeds.get(feed.name).spec
    assert kept.initial_cursor == {"at": 2**70}
    assert kept.expect == {"max_silence": 300.0, "max_refused": None, "min_rows": {"per": 3600.0, "rows": 7}}
