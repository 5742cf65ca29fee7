"""What every sink must do, as tests that a sink of anybody's can be put through.

Make a subclass in a test module of yours, with a fixture ``harness`` that gives a `SinkHarness` over an empty
database, and pytest runs the suite::

    class TestAcmeSink(SinkConformance):
        freezes = loses_answers = strands_commits = False

        @pytest.fixture
        def harness(self, tmp_path: Path) -> Iterator[SinkHarness]:
            made = AcmeHarness(tmp_path / "acme.db")
            yield made
            made.close()

Not every database has every property, and not every harness can bring every fault about. What a class
attribute takes away is not tested; a test named for it says so:

========================== ========== ===========================================================================
attribute                  default    …
========================== ========== ===========================================================================
``locks_feeds``            True       a transaction that stands still blocks its own feeds and no others
``ends_sessions``          True       `Sink.unblock` ends the sessions of another worker
``refuses_in_transaction`` True       the database itself can refuse a record: `SinkHarness.refused`
``freezes``                True       the harness has ``frozen``
``loses_answers``          True       the harness has ``lost``
``strands_commits``        True       the harness has ``stranded``
``meddles``                True       the harness has ``spoil`` and ``drop_table``
``locks_tables``           True       the harness has ``hold``
``password``               ``""``     what no error of an unreachable sink may hold
========================== ========== ===========================================================================

A sink that was not put through ``freezes`` and ``loses_answers`` has not been shown to land anything exactly
once: a test that breaks it off at its commit is worth the trouble.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import uuid4

import pytest

from feedq.core.model import StartCursor
from feedq.errors import Conflict, FeedqError, InvalidInput, SinkUnavailable
from feedq.records.batch import Batch
from feedq.sinks.base import (
    Checkpoint,
    CheckpointChange,
    Fenced,
    Judge,
    Superseded,
    Unusable,
    Written,
    anybody,
)
from tests.contract.sink_interrupts import SinkInterrupts
from tests.contract.sink_stage import (
    LOCK_TIMEOUT_S,
    NOWHERE,
    PATIENCE_S,
    RAW,
    TARGETS,
    FrozenWrite,
    SinkHarness,
    batch,
    dead,
    fence,
    fenced,
    landed,
    lines,
    needs,
    ordered,
    request,
    rows_of,
    run_together,
    shown,
    write,
    write_in_time,
)

__all__ = ["FrozenWrite", "SinkConformance", "SinkHarness"]

UNREADABLE = b'{"cut": '
"""No JSON, whatever the database."""


def changed(choose: Callable[[Checkpoint | None], StartCursor], judge: Judge = anybody) -> CheckpointChange:
    """A change of the first feed's cursor."""
    asked = request(1, 1)
    return CheckpointChange(asked.feed_id, asked.feed, asked.identity, choose, judge=judge)


class SinkConformance(SinkInterrupts):
    """Subclass it, and give it a fixture ``harness``: see the module."""

    # -- fencing -------------------------------------------------------------------------------------

    def test_a_feed_that_was_never_seen_has_no_cursor(self, harness: SinkHarness) -> None:
        assert fence(harness.sink(), 1, 1) == Fenced(1, 1, None, 0)

    def test_a_successor_resumes_after_what_its_predecessor_committed(self, harness: SinkHarness) -> None:
        sink = fenced(harness)
        sink.write([write(1, 1, batch(b"1", b"2", cursor={"at": 2}))])
        sink.write([write(1, 1, batch(b"3", cursor={"at": 3}))])
        assert fence(harness.sink(), 1, 2) == Fenced(1, 2, {"at": 3}, 3)

    def test_the_owner_may_fence_its_own_epoch_again(self, harness: SinkHarness) -> None:
        sink = fenced(harness, epoch=4)
        sink.write([write(1, 4, batch(b"1", cursor=1))])
        assert fence(sink, 1, 4) == Fenced(1, 4, 1, 1)
        assert sink.write([write(1, 4, batch(b"2", cursor=2))]).landed == {(1, 4): 1}

    def test_an_epoch_that_has_passed_is_superseded(self, harness: SinkHarness) -> None:
        sink = fenced(harness, epoch=9)
        assert sink.fence([request(1, 8)], lock_timeout_s=LOCK_TIMEOUT_S) == [Superseded(1, 8, 9)]
        assert fence(sink, 1, 10).epoch == 10

    def test_an_epoch_that_another_worker_has_fenced_is_superseded(self, harness: SinkHarness) -> None:
        """A control database that forgot an epoch gives it out a second time, while its first owner sleeps."""
        first, second = harness.sink(), harness.sink()
        fence(first, 1, 1)
        first.write([write(1, 1, batch(b"1", cursor=1))])
        assert second.fence([request(1, 1)], lock_timeout_s=LOCK_TIMEOUT_S) == [Superseded(1, 1, 1)]
        assert fence(second, 1, 2).cursor == 1
        assert first.write([write(1, 1, batch(b"2", cursor=2))]).landed == {}

    def test_many_feeds_are_fenced_at_once_each_with_its_own_outcome(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        fence(sink, 500, 9)
        sink.write([write(500, 9, batch(b"1", cursor="there"))])
        fence(sink, 700, 3)
        outcomes = sink.fence(
            [request(feed_id, 9 if feed_id == 500 else 2) for feed_id in range(2_500, 0, -1)],
            lock_timeout_s=PATIENCE_S,
        )
        by_feed = {outcome.feed_id: outcome for outcome in outcomes}
        expected = {n: Fenced(n, 2, None, 0) for n in range(1, 2_501)}
        assert by_feed == expected | {500: Fenced(500, 9, "there", 1), 700: Superseded(700, 2, 3)}

    def test_environments_do_not_know_of_one_another(self, harness: SinkHarness) -> None:
        blue, green = harness.sink(environment="blue"), harness.sink(environment="green")
        fence(blue, 1, 7)
        blue.write([write(1, 7, batch(b"1", UNREADABLE, cursor=1))])
        assert fence(green, 1, 1) == Fenced(1, 1, None, 0)
        assert green.write([write(1, 7, batch(b"not its own", cursor=9))]).lost == ((1, 7),)
        assert blue.write([write(1, 7, batch(b"2", cursor=2))]).landed == {(1, 7): 1}
        (letter,) = blue.dead_letters()
        assert green.dead_letters() == []
        assert green.drop([letter.id]) == 0
        assert green.replay([letter.id], RAW).landed == 0

    def test_nothing_to_fence_is_no_work(self, harness: SinkHarness) -> None:
        assert harness.sink().fence([], lock_timeout_s=0) == []

    # -- writing -------------------------------------------------------------------------------------

    def test_records_land_in_order_with_their_feed_and_epoch_and_the_checkpoint_beside_them(
        self, harness: SinkHarness
    ) -> None:
        sink = fenced(harness, epoch=3)
        written = sink.write([write(1, 3, lines(b'{"a":1}', b'{"a":2}'), batch(b'{"a":3}', cursor=[3]))])
        assert written == Written(landed={(1, 3): 3}, dead={}, lost=(), unusable={})
        sink.write([write(1, 3, batch(b'{"a":4}', cursor=[4]))])
        assert ordered(harness) == [("feed/1", 3, f'{{"a": {n}}}') for n in (1, 2, 3, 4)]
        assert fence(sink, 1, 4) == Fenced(1, 4, [4], 4)

    def test_a_batch_without_records_moves_the_cursor(self, harness: SinkHarness) -> None:
        sink = fenced(harness)
        assert sink.write([write(1, 1, batch(cursor="later"))]).landed == {(1, 1): 0}
        assert fence(sink, 1, 2) == Fenced(1, 2, "later", 0)

    def test_a_stale_epoch_cannot_write_a_record_or_a_checkpoint(self, harness: SinkHarness) -> None:
        old, new = harness.sink(), harness.sink()
        fence(old, 1, 1)
        old.write([write(1, 1, batch(b"1", cursor=1))])
        fence(new, 1, 2)
        written = old.write([write(1, 1, batch(b"2", UNREADABLE, cursor=2))])
        assert written == Written(landed={}, dead={}, lost=((1, 1),), unusable={})
        assert landed(harness) == rows_of(1, 1, "1")
        assert dead(new) == []
        assert fence(new, 1, 2).cursor == 1

    def test_an_epoch_that_was_never_fenced_cannot_write(self, harness: SinkHarness) -> None:
        sink = fenced(harness, epoch=5)
        assert sink.write([write(1, 6, batch(b"1", cursor=1)), write(2, 1, batch(b"1"))]).landed == {}
        assert landed(harness) == Counter()

    def test_a_write_continues_the_fence_and_then_the_write_before_it(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        left = fence(sink, 1, 1).commit_id
        for n in range(3):
            written = sink.write([write(1, 1, batch(b"%d" % n, cursor=n), continues=left)])
            assert written.landed == {(1, 1): 1}
            left = written.commit_id
        assert landed(harness) == rows_of(1, 1, "0", "1", "2")

    def test_a_write_that_continues_another_commit_than_the_last_writes_nothing(
        self, harness: SinkHarness
    ) -> None:
        """A sink that has lost commits must not be written to as if nothing were missing."""
        sink, other = harness.sink(), harness.sink()
        first, well = fence(sink, 1, 1).commit_id, fence(sink, 2, 1).commit_id
        second = sink.write([write(1, 1, batch(b"1", cursor=1), continues=first)]).commit_id
        for stale in (first, uuid4()):
            written = other.write(
                [
                    write(1, 1, batch(b"2", UNREADABLE, cursor=2), continues=stale),
                    write(2, 1, batch(b"1", cursor=1), continues=well),
                ]
            )
            assert (written.landed, written.lost) == ({(2, 1): 1}, ((1, 1),))
            well = written.commit_id
        assert dead(sink) == []
        assert sink.write([write(1, 1, batch(b"2", cursor=2), continues=second)]).landed == {(1, 1): 1}
        assert landed(harness) == rows_of(1, 1, "1", "2") + rows_of(2, 1, "1", "1")

    def test_a_fence_ends_what_was_to_be_continued_also_under_the_same_epoch(
        self, harness: SinkHarness
    ) -> None:
        sink = harness.sink()
        before = fence(sink, 1, 1).commit_id
        since = fence(sink, 1, 1).commit_id
        assert sink.write([write(1, 1, batch(b"1"), continues=before)]).lost == ((1, 1),)
        assert sink.write([write(1, 1, batch(b"2"), continues=since)]).landed == {(1, 1): 1}
        assert landed(harness) == rows_of(1, 1, "2")

    def test_the_fence_tells_whether_a_lost_checkpoint_is_somebody_elses(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        left = {n: fence(sink, n, 2).commit_id for n in (1, 2)}
        fence(harness.sink(), 1, 3)
        sink.write([write(2, 2, batch(b"1"), continues=left[2])])
        written = sink.write([write(n, 2, batch(b"2"), continues=left[n]) for n in (1, 2)])
        assert (written.landed, written.lost) == ({}, ((1, 2), (2, 2)))
        outcomes = sink.fence([request(n, 2) for n in (1, 2)], lock_timeout_s=PATIENCE_S)
        assert {outcome.feed_id: outcome for outcome in outcomes} == {
            1: Superseded(1, 2, 3),
            2: Fenced(2, 2, None, 1),
        }

    def test_a_fenced_feed_does_not_hold_back_the_others_of_its_group(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        for feed_id in (1, 2, 3):
            fence(sink, feed_id, 1)
        fence(harness.sink(), 2, 2)
        written = sink.write([write(n, 1, batch(b"%d" % n, cursor=n)) for n in (3, 2, 1)])
        assert written == Written(landed={(3, 1): 1, (1, 1): 1}, dead={}, lost=((2, 1),), unusable={})
        assert landed(harness) == rows_of(1, 1, "1") + rows_of(3, 1, "3")
        assert [fence(sink, n, 3).cursor for n in (1, 2, 3)] == [1, None, 3]

    def test_feeds_of_one_group_land_in_different_tables(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        records = {
            "json": b'{"\xc3\xb6": "\\u00f6"}',
            "text": "ö\t'\\N\\ \"".encode(),
            "bytes": b"\0\xff\n\\",
        }
        for n, target in enumerate(TARGETS.values()):
            fence(sink, n, 1, target)
        sink.write(
            [write(n, 1, batch(records[kind]), target=x) for n, (kind, x) in enumerate(TARGETS.items())]
        )
        for n, (kind, target) in enumerate(TARGETS.items()):
            payload = records[kind] if kind == "bytes" else records[kind].decode()
            assert landed(harness, target) == rows_of(n, 1, shown(payload, target))

    def test_a_cursor_comes_back_as_it_was_given(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        cursors = [0, -1, 2**80, 0.1, "", "ö\\u0000\n", [], {"a": [None, True]}, None]
        for epoch, cursor in enumerate(cursors, 1):
            fence(sink, 1, epoch)
            sink.write([write(1, epoch, batch(b"1", cursor=cursor))])  # type: ignore[arg-type]
            assert fence(sink, 1, epoch + 1).cursor == cursor

    def test_a_cursor_that_cannot_be_kept_stops_its_feed_and_no_other(self, harness: SinkHarness) -> None:
        sink = fenced(harness)
        fence(sink, 2, 1)
        no_json = float("nan")
        written = sink.write([write(1, 1, batch(b"1", cursor=no_json)), write(2, 1, batch(b"2", cursor=2))])
        assert written.landed == {(2, 1): 1}
        assert "cursor" in written.unusable[1, 1]
        assert landed(harness) == rows_of(2, 1, "2")

    def test_an_unreachable_database_is_unavailable_and_no_password_is_told(
        self, harness: SinkHarness
    ) -> None:
        sink = harness.unreachable()
        attempts: list[Callable[[], object]] = [
            lambda: sink.fence([request(1, 1)], lock_timeout_s=1),
            lambda: sink.write([write(1, 1, batch(b"1"))]),
            lambda: sink.unblock([uuid4()]),
            lambda: sink.check(RAW),
            lambda: sink.dead_letters(),
        ]
        for attempt in attempts:
            with pytest.raises(SinkUnavailable) as raised:
                attempt()
            assert not self.password or self.password not in str(raised.value)

    def test_a_closed_sink_can_be_used_again(self, harness: SinkHarness) -> None:
        sink = fenced(harness)
        sink.close()
        sink.close()
        assert sink.write([write(1, 1, batch(b"1"))]).landed == {(1, 1): 1}

    # -- targets that cannot work --------------------------------------------------------------------

    def test_landings_are_reported_before_anything_is_fenced(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        outcomes = sink.fence([request(1, 1, NOWHERE), request(2, 1)], lock_timeout_s=PATIENCE_S)
        by_feed = {outcome.feed_id: outcome for outcome in outcomes}
        assert isinstance(by_feed[1], Unusable)
        assert NOWHERE.table in by_feed[1].error
        assert by_feed[2] == Fenced(2, 1, None, 0)
        assert sink.write([write(1, 1, batch(b"{}"), target=NOWHERE)]).landed == {}

    def test_a_landing_can_be_checked_beforehand(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        assert sink.check(RAW) is None
        assert NOWHERE.table in (sink.check(NOWHERE) or "")
        fence(sink, 1, 1)
        assert sink.check(RAW) is None
        assert landed(harness) == Counter()

    def test_a_preview_tells_what_would_land_and_lands_nothing(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        for _ in ("before the table is there", "and after"):
            good, bad = sink.preview(write(1, 1, batch(b'{"a": 1}', UNREADABLE)))
            assert (good.record, good.error) == (b'{"a": 1}', None)
            assert "feed/1" in good.columns.values()
            assert bad.record == UNREADABLE
            assert bad.error
            fence(sink, 1, 1)
        assert landed(harness) == Counter()
        assert dead(sink) == []
        assert fence(sink, 1, 1).records == 0
        with pytest.raises(InvalidInput):
            sink.preview(write(1, 1, batch(b"{}"), target=NOWHERE))

    # -- records that cannot land --------------------------------------------------------------------

    @pytest.mark.parametrize("make", [batch, lines])
    @pytest.mark.parametrize("at", ["0", "9", "4", "0 9", "3 4 5", "0 1 2 3 4 5 6 7 8 9"])
    def test_unreadable_records_go_to_the_dead_letters_and_all_others_land(
        self, harness: SinkHarness, at: str, make: Callable[..., Batch]
    ) -> None:
        self._isolates(harness, UNREADABLE, set(map(int, at.split())), make)

    @needs("refuses_in_transaction")
    @pytest.mark.parametrize("make", [batch, lines])
    @pytest.mark.parametrize("at", ["0", "9", "4", "0 9", "3 4 5", "0 1 2 3 4 5 6 7 8 9"])
    def test_refused_records_go_to_the_dead_letters_and_all_others_land(
        self, harness: SinkHarness, at: str, make: Callable[..., Batch]
    ) -> None:
        self._isolates(harness, harness.refused, set(map(int, at.split())), make)

    def _isolates(self, harness: SinkHarness, bad: bytes, at: set[int], make: Callable[..., Batch]) -> None:
        sink = fenced(harness)
        good = [n for n in range(10) if n not in at]
        written = sink.write(
            [write(1, 1, make(*(bad if n in at else b"%d" % n for n in range(10)), cursor="end"))]
        )
        assert written == Written({(1, 1): len(good)}, {(1, 1): len(at)}, (), {})
        assert ordered(harness) == [("feed/1", 1, str(n)) for n in good]
        assert dead(sink) == [("feed/1", 1, bad, "end")] * len(at)
        assert fence(sink, 1, 2) == Fenced(1, 2, "end", len(good))

    @needs("refuses_in_transaction")
    def test_a_bad_record_of_one_feed_costs_the_others_of_the_group_nothing(
        self, harness: SinkHarness
    ) -> None:
        sink, feeds, bad = harness.sink(), range(1, 41), {1: harness.refused, 17: UNREADABLE, 40: UNREADABLE}
        sink.fence([request(n, 1) for n in feeds], lock_timeout_s=PATIENCE_S)
        fence(harness.sink(), 33, 2)
        written = sink.write([write(n, 1, lines(b"1", bad.get(n, b"2"), b"3", cursor=n)) for n in feeds])
        assert written.lost == ((33, 1),)
        assert written.dead == {(n, 1): 1 for n in bad}
        assert sum(written.landed.values()) == 39 * 3 - 3 == landed(harness).total()
        assert {(feed, record, cursor) for feed, _, record, cursor in dead(sink)} == {
            (f"feed/{n}", record, n) for n, record in bad.items()
        }

    # -- a feed in trouble beside others ---------------------------------------------------------------

    def test_a_record_nested_too_deeply_costs_its_feed_that_record_at_most(
        self, harness: SinkHarness
    ) -> None:
        sink, deep = harness.sink(), b"[" * 20_000 + b"]" * 20_000
        sink.fence([request(n, 1) for n in (1, 2)], lock_timeout_s=PATIENCE_S)
        group = [write(1, 1, batch(b"1", deep, b"2", cursor="end")), write(2, 1, batch(b"3"))]
        written = write_in_time(sink, group, briefly=True)
        assert written.landed == {(1, 1): 3 - written.dead.get((1, 1), 0), (2, 1): 1}
        assert set(dead(sink)) <= {("feed/1", 1, deep, "end")}

    def test_a_feed_of_which_all_is_refused_holds_up_no_other(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        sink.fence([request(n, 1) for n in (1, 2)], lock_timeout_s=PATIENCE_S)
        group = [write(1, 1, batch(*[UNREADABLE] * 3_000, cursor="end")), write(2, 1, batch(b"1"))]
        first = sink.write(group, briefly=True)
        assert first.landed[2, 1] == 1
        if first.postponed:
            assert set(first.postponed) == {(1, 1)}
            assert sink.write(group[:1]).dead == {(1, 1): 3_000}
        assert len(dead(sink)) == 3_000
        assert fence(sink, 1, 2) == Fenced(1, 2, "end", 0)

    @needs("meddles")
    def test_an_error_that_nobody_knows_is_one_records_and_not_the_sinks(self, harness: SinkHarness) -> None:
        sink, feeds = harness.sink(), range(1, 31)
        sink.fence([request(n, 1) for n in feeds], lock_timeout_s=PATIENCE_S)
        odd = harness.spoil(RAW)
        group = [write(n, 1, batch(b"1", odd if n == 17 else b"2", b"3", cursor=n)) for n in feeds]
        written = write_in_time(sink, group, briefly=True)
        assert written.landed == {(n, 1): 2 if n == 17 else 3 for n in feeds}
        assert written.dead == {(17, 1): 1}
        assert dead(sink) == [("feed/17", 1, odd, 17)]
        assert sink.dead_letters()[0].error

    @needs("meddles")
    def test_a_table_that_is_gone_stops_its_feeds_and_no_other(self, harness: SinkHarness) -> None:
        sink, other = harness.sink(), TARGETS["text"]
        sink.fence([request(1, 1), request(2, 1, other)], lock_timeout_s=PATIENCE_S)
        harness.drop_table(RAW)
        group = [write(1, 1, batch(b"1", cursor=1)), write(2, 1, batch(b"2", cursor=2), target=other)]
        written = write_in_time(sink, group, briefly=True)
        assert written.landed == {(2, 1): 1}
        assert RAW.table in written.unusable[1, 1]
        assert dead(sink) == []

    @needs("locks_tables")
    def test_a_table_that_is_locked_postpones_its_feeds_and_no_other(self, harness: SinkHarness) -> None:
        sink, other = harness.sink(), TARGETS["text"]
        sink.fence([request(1, 1), request(2, 1, other)], lock_timeout_s=PATIENCE_S)
        group = [write(1, 1, batch(b"1", cursor=1)), write(2, 1, batch(b"2", cursor=2), target=other)]
        with harness.hold(RAW):
            written = sink.write(group, briefly=True)
            assert (written.landed, set(written.postponed)) == ({(2, 1): 1}, {(1, 1)})
            assert set(sink.write(group[:1]).postponed) == {(1, 1)}
        assert write_in_time(sink, group[:1]).landed == {(1, 1): 1}
        assert landed(harness) == rows_of(1, 1, "1")

    # -- dead letters ----------------------------------------------------------------------------------

    def test_a_dead_letter_keeps_the_cursor_of_its_own_batch(self, harness: SinkHarness) -> None:
        sink = fenced(harness)
        sink.write([write(1, 1, batch(b"1", cursor=1), batch(UNREADABLE, cursor=2), batch(b"3", cursor=3))])
        assert dead(sink) == [("feed/1", 1, UNREADABLE, 2)]

    def test_dead_letters_are_listed_newest_first_by_feed_by_id_and_up_to_a_limit(
        self, harness: SinkHarness
    ) -> None:
        sink = harness.sink()
        for feed_id in (1, 2):
            fence(sink, feed_id, 1)
            sink.write([write(feed_id, 1, batch(b"a", b"b", b"c", cursor=feed_id))])
        assert [letter.record for letter in sink.dead_letters("feed/1")] == [b"c", b"b", b"a"]
        assert [letter.record for letter in sink.dead_letters("feed/2", limit=1)] == [b"c"]
        everything = sink.dead_letters()
        assert [letter.feed_id for letter in everything] == [2, 2, 2, 1, 1, 1]
        assert sink.dead_letters(ids=[everything[1].id, everything[4].id]) == [everything[1], everything[4]]
        assert sink.dead_letters(after=everything[3].id, limit=2) == [everything[2], everything[1]]
        assert sink.dead_letters("feed/3") == []
        assert all(letter.error for letter in everything)
        # In UTC, whatever the time zone of the database; its clock may not be ours.
        assert all(abs(datetime.now(UTC) - letter.at) < timedelta(minutes=20) for letter in everything)

    def test_dead_letters_that_are_dropped_are_gone(self, harness: SinkHarness) -> None:
        sink = fenced(harness)
        sink.write([write(1, 1, batch(b"a", b"b", b"c"))])
        first, second, third = (letter.id for letter in reversed(sink.dead_letters()))
        assert sink.drop([first, third, third + 1]) == 2
        assert [letter.id for letter in sink.dead_letters()] == [second]
        assert sink.drop([first]) == sink.drop([]) == 0

    def test_what_is_refused_again_stays_a_dead_letter(self, harness: SinkHarness) -> None:
        sink = fenced(harness)
        sink.write([write(1, 1, batch(UNREADABLE, b"1", cursor="end"))])
        (letter,) = sink.dead_letters()
        replayed = sink.replay([letter.id], RAW)
        assert (replayed.landed, set(replayed.refused)) == (0, {letter.id})
        assert dead(sink) == [("feed/1", 1, UNREADABLE, "end")]
        with pytest.raises(FeedqError):
            sink.replay([letter.id], NOWHERE)
        assert len(dead(sink)) == 1

    def test_a_dead_letter_lands_once_however_often_it_is_tried_again(self, harness: SinkHarness) -> None:
        sink, text = harness.sink(), TARGETS["text"]
        fence(sink, 1, 1)
        fence(sink, 2, 1, text)
        sink.write([write(1, 1, batch(b"no json", b"nor this", cursor="end"))])
        letters = [letter.id for letter in sink.dead_letters()]
        others = [harness.sink() for _ in range(2)]
        counts: list[int] = []

        def try_again(n: int) -> None:
            for _ in range(3):
                counts.append(others[n].replay(letters, text).landed)

        run_together(lambda: try_again(0), lambda: try_again(1))
        counts.append(sink.replay(letters, text).landed)
        assert sum(counts) == 2
        assert landed(harness, text) == rows_of(1, 1, "no json", "nor this")
        assert dead(sink) == []
        # No stream is moved by it.
        assert fence(sink, 1, 1) == Fenced(1, 1, "end", 0)

    # -- what people change --------------------------------------------------------------------------

    def test_a_cursor_that_a_person_gives_takes_the_feed_from_its_owner(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        left = fence(sink, 1, 1).commit_id
        left = sink.write([write(1, 1, batch(b"1", cursor=1), continues=left)]).commit_id
        sink.change_checkpoint(changed(lambda own: StartCursor([own.cursor if own else None], 7)))
        assert sink.write([write(1, 1, batch(b"2", cursor=2), continues=left)]).lost == ((1, 1),)
        (checkpoint,) = sink.checkpoints(["feed/1"])
        assert (checkpoint.feed_id, checkpoint.cursor, checkpoint.records) == (1, [1], 7)
        given = fence(sink, 1, 1)
        assert given == Fenced(1, 1, [1], 7, is_given=True)
        assert sink.write([write(1, 1, batch(b"2", cursor=2), continues=given.commit_id)]).landed == {
            (1, 1): 1
        }
        assert fence(sink, 1, 1) == Fenced(1, 1, 2, 8)

    def test_what_a_judge_forbids_is_not_done(self, harness: SinkHarness) -> None:
        sink = fenced(harness)
        fence(sink, 2, 1, TARGETS["text"])
        sink.write([write(1, 1, batch(b"1", b"no json", cursor="end"))])
        (letter,) = sink.dead_letters()

        def forbid(*_: object) -> Any:
            raise Conflict("the feed is running")

        for change in (
            lambda: sink.replay([letter.id], TARGETS["text"], judge=forbid),
            lambda: sink.drop([letter.id], judge=forbid),
            lambda: sink.change_checkpoint(changed(lambda _: StartCursor(None), judge=forbid)),
            lambda: sink.change_checkpoint(changed(forbid)),
        ):
            with pytest.raises(Conflict):
                change()
        assert sink.dead_letters() == [letter]
        assert fence(sink, 1, 2) == Fenced(1, 2, "end", 1)
        assert sink.replay([letter.id], TARGETS["text"], judge=lambda: None).landed == 1

    # -- many at once --------------------------------------------------------------------------------

    def test_writers_and_fences_over_the_same_feeds_in_any_order_do_not_deadlock(
        self, harness: SinkHarness
    ) -> None:
        feeds, owner, rounds = range(1, 21), uuid4(), 10
        harness.sink(worker_id=owner).fence([request(n, 1) for n in feeds], lock_timeout_s=PATIENCE_S)

        def writer(seed: int) -> None:
            rng, sink = random.Random(seed), harness.sink()
            for _ in range(rounds):
                order = rng.sample(feeds, 15)
                written = write_in_time(sink, [write(n, 1, lines(b"1", cursor=seed)) for n in order])
                assert written.landed == {(n, 1): 1 for n in order}

        def fencer(seed: int) -> None:
            rng, sink = random.Random(seed), harness.sink(worker_id=owner)
            for _ in range(rounds):
                outcomes = sink.fence(
                    [request(n, 1) for n in rng.sample(feeds, 15)], lock_timeout_s=PATIENCE_S
                )
                # These writes name nothing that they continue, so one may come before a fence is read back.
                assert all(isinstance(outcome, Fenced | Superseded) for outcome in outcomes)

        run_together(lambda: writer(1), lambda: writer(2), lambda: fencer(3))
        assert landed(harness).total() == 2 * rounds * 15
        outcomes = harness.sink().fence([request(n, 2) for n in feeds], lock_timeout_s=PATIENCE_S)
        assert sum(o.records for o in outcomes if isinstance(o, Fenced)) == 2 * rounds * 15

    @pytest.mark.parametrize("seed", [1, 2])
    def test_owners_that_take_feeds_from_one_another_land_every_record_once(
        self, harness: SinkHarness, seed: int
    ) -> None:
        """Each owner fences feeds under ever larger epochs and writes on from their cursors until it is fenced."""
        epochs, feeds, lock = count(1), range(1, 7), threading.Lock()

        def own(seed: int) -> None:
            rng, sink = random.Random(seed), harness.sink()
            for _ in range(8):
                mine = rng.sample(feeds, 3)
                with lock:
                    epoch = next(epochs)
                outcomes = sink.fence([request(n, epoch) for n in mine], lock_timeout_s=PATIENCE_S)
                at = {o.feed_id: int(str(o.cursor or 0)) for o in outcomes if isinstance(o, Fenced)}
                for _ in range(4):
                    group = []
                    for feed_id, cursor in at.items():
                        upto = cursor + rng.randint(1, 3)
                        records = [b"%d" % n for n in range(cursor + 1, upto + 1)]
                        group.append(write(feed_id, epoch, lines(*records, cursor=upto)))
                    written = write_in_time(sink, group)
                    at = {w.feed_id: int(str(w.cursor)) for w in group if w.key in written.landed}
                    assert {w.key for w in group} == set(written.landed) | set(written.lost)

        run_together(*(lambda s=s: own(s) for s in (10 * seed, 10 * seed + 1, 10 * seed + 2)))
        found: dict[str, list[int]] = {f"feed/{n}": [] for n in feeds}
        for feed, _, payload in landed(harness).elements():
            found[feed].append(int(payload))
        ends = harness.sink().fence([request(n, 10_000) for n in feeds], lock_timeout_s=PATIENCE_S)
        for end in ends:
            assert isinstance(end, Fenced)
            assert sorted(found[f"feed/{end.feed_id}"]) == list(range(1, int(str(end.cursor or 0)) + 1))
            assert end.records == len(found[f"feed/{end.feed_id}"])
