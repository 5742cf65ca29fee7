"""What becomes of records that cannot land: dead letters, in the same commit as their neighbours.

Part of `feedq.testing.sink_conformance`, which says how to use it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from feedq.errors import FeedqError
from feedq.model import Batch
from feedq.sinks.base import Fenced, Written
from feedq.testing.sink_stage import (
    LANDINGS,
    NOWHERE,
    PATIENCE_S,
    RAW,
    SinkHarness,
    SinkStage,
    batch,
    dead,
    fence,
    landed,
    lines,
    needs,
    ordered,
    request,
    rows_of,
    run_together,
    write,
    write_in_time,
)

UNREADABLE = b'{"cut": '
"""No JSON, whatever the database."""


class SinkRefusals(SinkStage):
    """The tests of dead letters."""

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
        sink = harness.sink()
        fence(sink, 1, 1)
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
        assert written.fenced == ((33, 1),)
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
        sink, other = harness.sink(), LANDINGS["text"]
        sink.fence([request(1, 1), request(2, 1, other)], lock_timeout_s=PATIENCE_S)
        harness.drop_table(RAW)
        group = [write(1, 1, batch(b"1", cursor=1)), write(2, 1, batch(b"2", cursor=2), landing=other)]
        written = write_in_time(sink, group, briefly=True)
        assert written.landed == {(2, 1): 1}
        assert RAW.table in written.unusable[1, 1]
        assert dead(sink) == []

    @needs("locks_tables")
    def test_a_table_that_is_locked_postpones_its_feeds_and_no_other(self, harness: SinkHarness) -> None:
        sink, other = harness.sink(), LANDINGS["text"]
        sink.fence([request(1, 1), request(2, 1, other)], lock_timeout_s=PATIENCE_S)
        group = [write(1, 1, batch(b"1", cursor=1)), write(2, 1, batch(b"2", cursor=2), landing=other)]
        with harness.hold(RAW):
            written = sink.write(group, briefly=True)
            assert (written.landed, set(written.postponed)) == ({(2, 1): 1}, {(1, 1)})
            assert set(sink.write(group[:1]).postponed) == {(1, 1)}
        assert write_in_time(sink, group[:1]).landed == {(1, 1): 1}
        assert landed(harness) == rows_of(1, 1, "1")

    # -- dead letters ----------------------------------------------------------------------------------

    def test_a_dead_letter_keeps_the_cursor_of_its_own_batch(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        fence(sink, 1, 1)
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
        assert [letter.record for letter in sink.dead_letters(feed_id=2, limit=1)] == [b"c"]
        everything = sink.dead_letters()
        assert [letter.feed_id for letter in everything] == [2, 2, 2, 1, 1, 1]
        assert sink.dead_letters(ids=[everything[1].id, everything[4].id]) == [everything[1], everything[4]]
        assert sink.dead_letters(after=everything[3].id, limit=2) == [everything[2], everything[1]]
        assert sink.dead_letters("feed/3") == []
        assert all(letter.error for letter in everything)
        # In UTC, whatever the time zone of the database; its clock may not be ours.
        assert all(abs(datetime.now(UTC) - letter.at) < timedelta(minutes=20) for letter in everything)

    def test_dead_letters_that_are_dropped_are_gone(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        fence(sink, 1, 1)
        sink.write([write(1, 1, batch(b"a", b"b", b"c"))])
        first, second, third = (letter.id for letter in reversed(sink.dead_letters()))
        assert sink.drop([first, third, third + 1]) == 2
        assert [letter.id for letter in sink.dead_letters()] == [second]
        assert sink.drop([first]) == sink.drop([]) == 0

    def test_what_is_refused_again_stays_a_dead_letter(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        fence(sink, 1, 1)
        sink.write([write(1, 1, batch(UNREADABLE, b"1", cursor="end"))])
        (letter,) = sink.dead_letters()
        replayed = sink.replay([letter.id], RAW)
        assert (replayed.landed, set(replayed.refused)) == (0, {letter.id})
        assert dead(sink) == [("feed/1", 1, UNREADABLE, "end")]
        with pytest.raises(FeedqError):
            sink.replay([letter.id], NOWHERE)
        assert len(dead(sink)) == 1

    def test_a_dead_letter_lands_once_however_often_it_is_tried_again(self, harness: SinkHarness) -> None:
        sink, text = harness.sink(), LANDINGS["text"]
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
