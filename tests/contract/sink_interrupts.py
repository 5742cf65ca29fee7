"""What a sink must survive: predecessors that freeze in their transactions, and commits whose answers are lost.

Part of `tests.contract.sink_conformance`, which says how to use it.
"""

from __future__ import annotations

import threading
from collections import Counter
from uuid import uuid4

import pytest

from feedq.sinks.base import Blocked, Fenced, Written
from tests.contract.sink_stage import (
    LOCK_TIMEOUT_S,
    PATIENCE_S,
    SinkHarness,
    SinkStage,
    batch,
    dead,
    fence,
    landed,
    needs,
    request,
    rows_of,
    write,
)


class SinkInterrupts(SinkStage):
    """The tests for sinks whose harness can break them off."""

    # -- a predecessor in the way --------------------------------------------------------------------

    @needs("freezes")
    def test_a_fence_waits_for_a_commit_in_flight_and_reads_the_cursor_it_leaves(
        self, harness: SinkHarness
    ) -> None:
        worker = uuid4()
        fence(harness.sink(worker_id=worker), 1, 1)
        frozen = harness.frozen([write(1, 1, batch(b"1", cursor="left"))], worker_id=worker)
        outcomes: list[object] = []
        successor = threading.Thread(target=lambda: outcomes.append(fence(harness.sink(), 1, 2)))
        successor.start()
        frozen.thaw()
        successor.join(PATIENCE_S)
        assert outcomes == [Fenced(1, 2, "left", 1)]

    @needs("freezes")
    def test_a_frozen_predecessor_blocks_its_successor_and_is_named(self, harness: SinkHarness) -> None:
        zombie = uuid4()
        fence(harness.sink(worker_id=zombie), 2, 1)
        frozen = harness.frozen([write(2, 1, batch(b"1", cursor=1))], worker_id=zombie)
        outcomes = harness.sink().fence([request(2, 2)], lock_timeout_s=LOCK_TIMEOUT_S)
        assert outcomes == [Blocked(2, 2, zombie)]
        assert isinstance(frozen.thaw(), Written)
        assert fence(harness.sink(), 2, 2) == Fenced(2, 2, 1, 1)

    @needs("freezes", "locks_feeds")
    def test_a_frozen_predecessor_blocks_its_own_feeds_only(self, harness: SinkHarness) -> None:
        zombie = uuid4()
        old = harness.sink(worker_id=zombie)
        for feed_id in (2, 3):
            fence(old, feed_id, 1)
        frozen = harness.frozen([write(n, 1, batch(b"1", cursor=1)) for n in (2, 3)], worker_id=zombie)
        outcomes = harness.sink().fence([request(n, 2) for n in (1, 2, 3, 4)], lock_timeout_s=LOCK_TIMEOUT_S)
        assert sorted(outcomes, key=lambda outcome: outcome.feed_id) == [
            Fenced(1, 2, None, 0),
            Blocked(2, 2, zombie),
            Blocked(3, 2, zombie),
            Fenced(4, 2, None, 0),
        ]
        frozen.thaw()

    @needs("freezes", "locks_feeds")
    def test_a_lock_timeout_of_nothing_still_fences_what_is_free(self, harness: SinkHarness) -> None:
        zombie = uuid4()
        fence(harness.sink(worker_id=zombie), 1, 1)
        frozen = harness.frozen([write(1, 1, batch(b"1"))], worker_id=zombie)
        outcomes = harness.sink().fence([request(1, 2), request(2, 1)], lock_timeout_s=0)
        assert set(outcomes) == {Blocked(1, 2, zombie), Fenced(2, 1, None, 0)}
        frozen.thaw()

    @needs("freezes", "locks_feeds")
    def test_a_writer_that_stands_still_holds_up_no_writer_of_other_feeds(self, harness: SinkHarness) -> None:
        """However their feeds are mixed: whoever looks for its rows must not wait for those in between."""
        odd, even = range(1, 600, 2), range(2, 601, 2)
        zombie, other = uuid4(), harness.sink()
        fenced = harness.sink(worker_id=zombie).fence([request(n, 1) for n in odd], lock_timeout_s=PATIENCE_S)
        fenced += other.fence([request(n, 1) for n in even], lock_timeout_s=PATIENCE_S)
        assert all(isinstance(outcome, Fenced) for outcome in fenced)
        frozen = harness.frozen([write(n, 1, batch(b"1", cursor=n)) for n in odd], worker_id=zombie)
        written = other.write([write(n, 1, batch(b"2", cursor=n)) for n in even])
        assert written.landed == {(n, 1): 1 for n in even}
        assert isinstance(frozen.thaw(), Written)

    @needs("freezes", "ends_sessions")
    def test_unblocking_ends_the_zombies_transaction_and_it_can_write_nothing_more(
        self, harness: SinkHarness
    ) -> None:
        zombie = uuid4()
        fence(harness.sink(worker_id=zombie), 1, 1)
        frozen = harness.frozen([write(1, 1, batch(b'"zombie"', cursor="z"))], worker_id=zombie)
        successor = harness.sink()
        assert successor.fence([request(1, 2)], lock_timeout_s=LOCK_TIMEOUT_S) == [Blocked(1, 2, zombie)]
        # Its writer, and the session that it fenced with.
        assert successor.unblock([zombie]) == 2
        assert fence(successor, 1, 2) == Fenced(1, 2, None, 0)
        successor.write([write(1, 2, batch(b'"heir"', cursor="h"))])

        assert isinstance(frozen.thaw(), Exception)
        woken = harness.sink(worker_id=zombie)
        assert woken.write([write(1, 1, batch(b'"zombie"', cursor="z"))]).lost == ((1, 1),)
        assert landed(harness) == rows_of(1, 2, '"heir"')
        assert fence(successor, 1, 3).cursor == "h"

    @needs("freezes")
    def test_a_writer_that_wakes_after_its_feed_was_lost_has_written_nothing_of_it(
        self, harness: SinkHarness
    ) -> None:
        """It either committed before its successor's fence returned, or it never does."""
        zombie = uuid4()
        fence(harness.sink(worker_id=zombie), 1, 1)
        frozen = harness.frozen([write(1, 1, batch(b'"zombie"', cursor="z"))], worker_id=zombie)
        successor = harness.sink()
        successor.unblock([zombie])
        (first,) = successor.fence([request(1, 2)], lock_timeout_s=LOCK_TIMEOUT_S)
        came = frozen.thaw()
        heir = first if isinstance(first, Fenced) else fence(successor, 1, 2)
        successor.write([write(1, 2, batch(b'"heir"', cursor="h"))])
        if heir.cursor == "z":
            assert isinstance(came, Written)
            assert landed(harness) == rows_of(1, 1, '"zombie"') + rows_of(1, 2, '"heir"')
        else:
            assert isinstance(came, Exception)
            assert landed(harness) == rows_of(1, 2, '"heir"')

    def test_unblocking_spares_other_workers_and_oneself(self, harness: SinkHarness) -> None:
        me, other = uuid4(), uuid4()
        sink, bystander = harness.sink(worker_id=me), harness.sink(worker_id=other)
        fence(sink, 1, 1)
        fence(bystander, 2, 1)
        assert sink.unblock([]) == 0
        assert sink.unblock([me, uuid4()]) == 0
        assert bystander.write([write(2, 1, batch(b"1"))]).landed == {(2, 1): 1}

    # -- a commit whose answer was lost --------------------------------------------------------------

    @needs("loses_answers")
    @pytest.mark.parametrize("happened", [True, False])
    def test_a_lost_answer_is_decided_by_the_checkpoint(self, harness: SinkHarness, happened: bool) -> None:
        fence(harness.sink(), 1, 1)
        fence(harness.sink(), 2, 1)
        writes = [write(1, 1, batch(b"1", cursor=1)), write(2, 1, batch(b"2", b"no json", cursor=2))]
        sink = harness.lost(writes, happened=happened)
        assert landed(harness).total() == 2 * happened
        assert sink.write(writes) == Written({(1, 1): 1, (2, 1): 1}, {(2, 1): 1}, (), {})
        assert landed(harness) == rows_of(1, 1, "1") + rows_of(2, 1, "2")
        assert dead(sink) == [("feed/2", 1, b"no json", 2)]
        assert [fence(sink, n, 2).cursor for n in (1, 2)] == [1, 2]

    @needs("loses_answers")
    @pytest.mark.parametrize("happened", [True, False])
    def test_a_feed_that_a_successor_wrote_since_is_fenced_and_the_others_still_tell(
        self, harness: SinkHarness, happened: bool
    ) -> None:
        fence(harness.sink(), 1, 1)
        fence(harness.sink(), 2, 1)
        writes = [write(n, 1, batch(b"1", cursor=1)) for n in (1, 2)]
        sink = harness.lost(writes, happened=happened)
        heir = harness.sink()
        assert fence(heir, 1, 2).cursor == (1 if happened else None)
        heir.write([write(1, 2, batch(b"2", cursor=2))])
        assert sink.write(writes) == Written({(2, 1): 1}, {}, ((1, 1),), {})

    @needs("loses_answers")
    @pytest.mark.parametrize("happened", [True, False])
    def test_what_is_left_of_a_group_learns_what_became_of_all_of_it(
        self, harness: SinkHarness, happened: bool
    ) -> None:
        owner = harness.sink()
        left = {n: fence(owner, n, 1).commit_id for n in (1, 2)}
        writes = [write(n, 1, batch(b"%d" % n, cursor=n), continues=left[n]) for n in (1, 2)]
        sink = harness.lost(writes, happened=happened)
        assert sink.write(writes[1:]).landed[2, 1] == 1
        assert landed(harness) == rows_of(2, 1, "2") + (rows_of(1, 1, "1") if happened else Counter())

    @needs("loses_answers")
    @pytest.mark.parametrize("happened", [True, False])
    def test_other_batches_than_those_whose_answer_was_lost_do_not_land_beside_them(
        self, harness: SinkHarness, happened: bool
    ) -> None:
        left = fence(harness.sink(), 1, 1).commit_id
        first, more = batch(b"1", cursor=1), batch(b"2", cursor=2)
        sink = harness.lost([write(1, 1, first, continues=left)], happened=happened)
        written = sink.write([write(1, 1, first, more, continues=left)])
        assert (written.landed, written.lost) == (({}, ((1, 1),)) if happened else ({(1, 1): 2}, ()))
        assert landed(harness) == (rows_of(1, 1, "1") if happened else rows_of(1, 1, "1", "2"))

    @needs("loses_answers")
    @pytest.mark.parametrize("happened", [True, False])
    def test_the_next_write_continues_what_a_lost_answer_turns_out_to_have_been(
        self, harness: SinkHarness, happened: bool
    ) -> None:
        left = fence(harness.sink(), 1, 1).commit_id
        writes = [write(1, 1, batch(b"1", cursor=1), continues=left)]
        left = harness.lost(writes, happened=happened).write(writes).commit_id
        next_ = write(1, 1, batch(b"2", cursor=2), continues=left)
        assert harness.sink().write([next_]).landed == {(1, 1): 1}

    @needs("loses_answers")
    @pytest.mark.parametrize("happened", [True, False])
    def test_a_lost_answer_of_a_feed_that_changed_since_under_its_epoch_is_lost(
        self, harness: SinkHarness, happened: bool
    ) -> None:
        """The sink went back, or the epoch was given out twice: nothing is known, and nothing may be repeated."""
        worker = uuid4()
        owner = harness.sink(worker_id=worker)
        left = {n: fence(owner, n, 1).commit_id for n in (1, 2)}
        writes = [write(n, 1, batch(b"1", cursor=1), continues=left[n]) for n in (1, 2)]
        sink = harness.lost(writes, happened=happened)
        fence(owner, 1, 1)
        written = sink.write(writes)
        assert (written.landed, written.lost) == ({(2, 1): 1}, ((1, 1),))
        assert landed(harness) == rows_of(2, 1, "1") + (rows_of(1, 1, "1") if happened else Counter())

    @needs("strands_commits")
    def test_nothing_is_written_while_the_commit_may_still_arrive(self, harness: SinkHarness) -> None:
        fence(harness.sink(), 1, 1)
        writes = [write(1, 1, batch(b"1", cursor=1))]
        sink, let_the_commit_arrive = harness.stranded(writes)
        assert sink.write(writes).landed == {(1, 1): 1}
        let_the_commit_arrive()
        assert landed(harness) == rows_of(1, 1, "1")
