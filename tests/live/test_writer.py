"""Group commit: order, grouping, refusal, outages and lost answers, over a sink with faults."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator, Sequence
from uuid import uuid4

import pytest

from feedq.errors import CheckpointLost, FeedMisconfigured, SinkUnavailable
from feedq.records.batch import Records
from feedq.sinks.base import FeedWrite, Target, Written
from feedq.sinks.copytext import SetAside
from feedq.sinks.event_time import EventTime, event_time_reader
from tests.fakes.sink import FaultyPlan, FaultySession, FaultySink, SinkFile
from tests.unit.data_path import AT, LIMIT_S, DataPath, batch, until


@pytest.fixture
def path() -> Iterator[DataPath]:
    with DataPath() as made:
        yield made


async def test_the_event_time_is_that_of_the_newest_record_that_has_landed() -> None:
    with DataPath(SinkFile(poison=b"poison")) as path:
        batch_queue = path.open_batch_queue((1, 1), "a", target=Target("landed", "json"))
        batch_queue.progress.event_times = event_time_reader("/ts", batch_queue.target)
        for record in (b'{"ts": 7}', b'{"ts": 6}', b'{"ts": 9, "poison": 1}', b'{"ts": "soon"}'):
            await batch_queue.put(batch(record, cursor=1))
            await batch_queue.join()
    at, fault = batch_queue.progress.event_time or EventTime()
    assert (at, "which is not a time" in (fault or "")) == (7, True)


async def test_many_feeds_share_few_commits() -> None:
    with DataPath(flush_interval_s=0.2) as path:
        batch_queues = [path.open_batch_queue((n, 1), f"feed-{n}") for n in range(1, 101)]
        for batch_queue in batch_queues:
            await batch_queue.put(batch(b"x", cursor=1))
        for batch_queue in batch_queues:
            await batch_queue.join()
        assert path.file.commits <= 3


async def test_a_group_holds_no_more_than_twice_what_makes_it_due() -> None:
    with DataPath(flush_bytes=30) as path:
        path.file.away = True
        batch_queues = [path.open_batch_queue((n, 1), f"feed-{n}") for n in range(1, 21)]
        for batch_queue in batch_queues:
            await batch_queue.put(batch(b"ten bytes.", cursor=1))
        path.file.away = False
        for batch_queue in batch_queues:
            await batch_queue.join()
        assert path.file.commits >= 200 / (2 * 30)


async def test_a_batch_is_acknowledged_once_it_is_committed_and_not_when_it_is_refused(
    path: DataPath,
) -> None:
    path.file.put_checkpoint(2, 7, uuid4())
    acknowledged: list[str] = []
    landed, refused = path.open_batch_queue((1, 1), "a"), path.open_batch_queue((2, 1), "b")
    for batch_queue in (landed, refused):

        def acknowledge(feed: str = batch_queue.feed) -> None:
            acknowledged.append(f"{feed} {len(path.file.rows.get(feed, ()))}")

        await batch_queue.put(
            Records(records=(b"1",)).batch(cursor=1, received_at=AT, on_committed=acknowledge)
        )
    await landed.join()
    with pytest.raises(CheckpointLost):
        await refused.join()
    assert acknowledged == ["a 1"]


async def test_nothing_lands_after_a_refused_batch_even_if_the_table_is_back(path: DataPath) -> None:
    path.file.unusable["landed"] = "table is gone"
    batch_queue = path.open_batch_queue((1, 1), "a")
    await batch_queue.put(batch(b"1", cursor=1))
    await until(lambda: batch_queue.broken, "refused")
    path.file.unusable.clear()
    path.writer.submit(batch_queue, batch(b"2", cursor=2))
    with pytest.raises(FeedMisconfigured, match="table is gone"):
        await batch_queue.join()
    await until(lambda: batch_queue.is_empty, "answered")
    assert path.file.rows == {}, "a gap: record 2 landed and record 1 did not"
    assert path.file.checkpoint(1).cursor is None


async def test_backpressure_bounds_what_a_feed_holds_while_the_sink_is_away() -> None:
    with DataPath(inflight_max=100) as path:
        path.file.away = True
        batch_queue = path.open_batch_queue((1, 1), "a")
        put = 0

        async def fill() -> None:
            nonlocal put
            while True:
                await batch_queue.put(batch(b"ten bytes.", cursor=put))
                put += 1

        filling = asyncio.create_task(fill())
        # The tenth is on its way, too, and fills the feed's room up.
        await until(lambda: path.budget.bytes == 100, "its room is full")
        # A moment, to see that no more is taken.
        await asyncio.sleep(0.1)
        assert (put, path.budget.bytes) == (9, 100)
        filling.cancel()
        path.file.away = False


async def test_the_budget_of_the_worker_stops_every_feed_and_lets_them_go_on() -> None:
    with DataPath(budget=50) as path:
        path.file.away = True
        batch_queues = [path.open_batch_queue((n, 1), f"feed-{n}") for n in range(1, 11)]

        async def fill(n: int) -> None:
            for i in range(20):
                await batch_queues[n].put(batch(b"ten bytes.", cursor=i))

        filling = [asyncio.create_task(fill(n)) for n in range(10)]
        # A moment, to see that nothing is answered.
        await asyncio.sleep(0.2)
        # Each feed may hold one batch beyond the budget, or a single large one could never pass.
        assert path.budget.bytes <= 50 + 10 * 10
        path.file.away = False
        async with asyncio.timeout(20):
            await asyncio.gather(*filling)
        assert sum(len(rows) for rows in path.file.rows.values()) >= 190


async def test_feeds_of_a_locked_table_wait_and_the_others_go_on(path: DataPath) -> None:
    path.file.locked_tables.add("stuck")
    stuck = path.open_batch_queue((1, 1), "a", target=Target("stuck", "bytes"))
    free = path.open_batch_queue((2, 1), "b")
    await stuck.put(batch(b"0", cursor=0))
    await until(lambda: stuck.is_postponed, "put aside")
    putting = asyncio.create_task(stuck.put(batch(b"1", cursor=1)))
    for n in range(20):
        await free.put(batch(b"%d" % n, cursor=n))
        await free.join()
    assert path.file.rows == {"b": [b"%d" % n for n in range(20)]}
    assert not putting.done(), "it would fill up the room of the others"

    path.file.locked_tables.clear()
    await putting
    await stuck.put(batch(b"2", cursor=2))
    await stuck.join()
    assert path.file.rows["a"] == [b"0", b"1", b"2"]
    assert (stuck.cursor, stuck.progress.landed, stuck.is_postponed) == (2, 3, False)
    assert path.budget.bytes == 0


async def test_batches_that_are_committed_do_not_stay_in_memory(path: DataPath) -> None:
    batch_queue = path.open_batch_queue((1, 1), "a")

    def acknowledge() -> None:
        """Lives as long as its batch does."""

    alive = weakref.ref(acknowledge)
    await batch_queue.put(Records(records=(b"1",)).batch(cursor=1, received_at=AT, on_committed=acknowledge))
    del acknowledge
    await batch_queue.join()
    await until(lambda: alive() is None, "let go, and not when the next one comes")


async def test_a_bug_in_a_sink_is_told_to_its_feeds_and_does_not_end_the_thread(
    path: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FaultySession, "lock", None)
    batch_queue = path.open_batch_queue((1, 1), "a")
    await batch_queue.put(batch(b"1", cursor=1))
    with pytest.raises(Exception, match="unexpected error"):
        await batch_queue.join()
    monkeypatch.undo()
    other = path.open_batch_queue((2, 1), "b")
    await other.put(batch(b"2", cursor=1))
    await other.join()
    assert path.file.rows == {"b": [b"2"]}


async def test_a_stopped_writer_ends_at_once_with_the_sink_away() -> None:
    with DataPath() as path:
        path.file.away = True
        batch_queue = path.open_batch_queue((1, 1), "a")
        await batch_queue.put(batch(b"1", cursor=1))
        # A moment, to see that nothing is answered.
        await asyncio.sleep(0.05)
        path.writer.stop(timeout_s=LIMIT_S)
        assert path.writer._thread is not None
        assert not path.writer._thread.is_alive()


# -- feeds in trouble --------------------------------------------------------------------------------


async def test_a_feed_with_a_refused_record_is_written_apart_and_its_dead_letter_has_a_reason(
    path: DataPath,
) -> None:
    path.file.poison = b"bad"
    troubled, well = path.open_batch_queue((1, 1), "a"), path.open_batch_queue((2, 1), "b")
    await troubled.put(batch(b"1", b"bad", cursor=2))
    await well.put(batch(b"1", cursor=1))
    await well.join()
    await troubled.put(batch(b"2", cursor=3))
    await troubled.join()
    told = troubled.progress
    assert (told.landed, told.dead, told.dead_error, troubled.cursor) == (2, 1, "poison", 3)
    assert (troubled.is_apart, well.is_apart) == (True, False)
    # The writer takes the postponement back after it has told what landed.
    await until(lambda: not troubled.is_postponed, "it is not postponed any more")
    assert path.file.rows == {"a": [b"1", b"2"], "b": [b"1"]}


async def test_a_feed_that_behaves_again_lands_with_the_others_again(
    path: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.worker.writer.SUSPECT_S", 0.2)
    path.file.poison = b"bad"
    batch_queue = path.open_batch_queue((1, 1), "a")
    await batch_queue.put(batch(b"bad", cursor=1))
    await batch_queue.join()
    assert batch_queue.is_apart
    for n in range(20):
        await batch_queue.put(batch(b"%d" % n, cursor=n))
    await until(lambda: not batch_queue.is_apart, "it goes back once nothing of it waits")
    await batch_queue.put(batch(b"20", cursor=20))
    await batch_queue.join()
    assert path.file.rows["a"] == [b"%d" % n for n in range(21)]


async def test_records_stay_in_order_while_a_feed_goes_apart_and_comes_back(
    path: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.worker.writer.SUSPECT_S", 0.001)
    path.file.poison = b"bad"
    batch_queues = [path.open_batch_queue((n, 1), f"feed-{n}") for n in range(1, 6)]
    for n in range(300):
        for batch_queue in batch_queues:
            bad = n % (7 * batch_queue.key[0]) == 0
            await batch_queue.put(batch(b"bad" if bad else b"%d" % n, cursor=n))
    for batch_queue in batch_queues:
        await batch_queue.join()
        landed = [int(record) for record in path.file.rows[batch_queue.feed]]
        assert landed == [n for n in range(300) if n % (7 * batch_queue.key[0])]
        counted = batch_queue.progress
        assert (counted.landed + counted.dead, batch_queue.cursor) == (300, 299)
    assert path.budget.bytes == 0


async def test_what_is_in_the_way_of_a_feed_is_told_until_it_lands(path: DataPath) -> None:
    path.file.locked_tables.add("landed")
    told: list[object] = []
    batch_queue = path.open_batch_queue((1, 1), "a", on_change=lambda: told.append(batch_queue.trouble))
    await batch_queue.put(batch(b"0", cursor=0))
    await until(lambda: batch_queue.trouble, "told")
    assert batch_queue.trouble == "table 'landed' is locked: for the test"
    path.file.locked_tables.clear()
    await batch_queue.join()
    await until(lambda: batch_queue.trouble is None, "told that it lands")
    assert told[0] == "table 'landed' is locked: for the test"


async def test_a_feed_that_alone_makes_the_sink_fail_does_not_hold_up_the_others(
    path: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink of somebody else's may take one feed's trouble for its own."""
    monkeypatch.setattr("feedq.worker.writer.RETRY_FIRST_S", 0.001)
    write = FaultySink.write

    def refuse(sink: FaultySink, writes: Sequence[FeedWrite], *, briefly: bool = False) -> Written:
        if any(one.feed_id == 1 for one in writes):
            raise SinkUnavailable("sink (for the test): away, it thinks")
        return write(sink, writes, briefly=briefly)

    monkeypatch.setattr(FaultySink, "write", refuse)
    troubled, *others = (path.open_batch_queue((n, 1), f"feed-{n}") for n in (1, 2, 3))
    for batch_queue in (troubled, *others):
        await batch_queue.put(batch(b"1", cursor=1))
    await until(lambda: all(batch_queue.is_empty for batch_queue in others), "the others land")
    await until(lambda: troubled.trouble, "told")
    for batch_queue in others:
        await batch_queue.put(batch(b"2", cursor=2))
        await batch_queue.join()
    monkeypatch.undo()
    await troubled.join()
    assert path.file.rows == {"feed-1": [b"1"], "feed-2": [b"1", b"2"], "feed-3": [b"1", b"2"]}


async def test_an_error_of_ours_over_one_feed_is_told_to_no_other(
    path: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    land = FaultyPlan.land

    def stumble(plan: FaultyPlan, writes: Sequence[FeedWrite], set_aside: SetAside) -> None:
        assert all(write.feed != "a" for write in writes), "something that nobody thought of"
        land(plan, writes, set_aside)

    monkeypatch.setattr(FaultyPlan, "land", stumble)
    odd, well = path.open_batch_queue((1, 1), "a"), path.open_batch_queue((2, 1), "b")
    await odd.put(batch(b"odd", cursor=1))
    await well.put(batch(b"1", cursor=1))
    await well.join()
    with pytest.raises(SinkUnavailable, match="nobody thought of"):
        await odd.join()
    assert path.file.rows == {"b": [b"1"]}
    assert path.budget.bytes == 0


@pytest.mark.parametrize("where", ["away", "locked", "queued"])
async def test_an_abandoned_feed_leaves_the_writer_at_once(path: DataPath, where: str) -> None:
    if where == "locked":
        path.file.locked_tables.add("landed")
    else:
        path.file.away = True
    gone, kept = (
        path.open_batch_queue((1, 1), "a"),
        path.open_batch_queue((2, 1), "b", target=Target("other", "bytes")),
    )
    first, second = (kept, gone) if where == "queued" else (gone, kept)
    await first.put(batch(b"1", cursor=1))
    # A moment, so that it is in the group that fails, and the other one is not.
    await asyncio.sleep(0.1)
    await second.put(batch(b"1", cursor=1))
    gone.abandon()
    await until(lambda: path.budget.bytes <= 1, "given back")
    path.file.away = False
    path.file.locked_tables.clear()
    await kept.join()
    assert path.file.rows == {"b": [b"1"]}


async def test_an_abandoned_feed_whose_commit_is_unknown_is_not_written_again(path: DataPath) -> None:
    gone, kept = path.open_batch_queue((1, 1), "a"), path.open_batch_queue((2, 1), "b")
    path.file.lose_answer = False
    path.file.away_after = True
    await gone.put(batch(b"1", cursor=1))
    await kept.put(batch(b"1", cursor=1))
    await until(lambda: path.file.away, "its answer is lost, and nobody can be asked")
    gone.abandon()
    path.file.away = False
    await kept.join()
    assert path.file.rows == {"b": [b"1"]}


async def test_each_group_continues_the_one_before_it_also_one_whose_answer_was_lost(path: DataPath) -> None:
    batch_queue = path.open_batch_queue((1, 1), "a")
    for n, lost in enumerate([None, True, False, None, True]):
        path.file.lose_answer = lost
        await batch_queue.put(batch(b"%d" % n, cursor=n))
        await batch_queue.join()
        assert batch_queue.continues == path.file.checkpoint(1).commit_id
    assert path.file.rows["a"] == [b"%d" % n for n in range(5)]


async def test_a_feed_whose_checkpoint_went_back_writes_nothing_more_and_the_others_do(
    path: DataPath,
) -> None:
    back, well = (path.open_batch_queue((n, 1), f"feed-{n}") for n in (1, 2))
    for batch_queue in (back, well):
        await batch_queue.put(batch(b"1", cursor=1))
        await batch_queue.join()
    path.file.put_checkpoint(1, 1, uuid4(), cursor=0)
    for batch_queue in (back, well):
        await batch_queue.put(batch(b"2", cursor=2))
    await well.join()
    with pytest.raises(CheckpointLost, match=r"feed 1 \(feed-1\): its checkpoint .* under epoch 1"):
        await back.join()
    assert path.file.rows == {"feed-1": [b"1"], "feed-2": [b"1", b"2"]}


async def test_a_sink_that_does_not_answer_counts_as_away_before_it_fails(
    path: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedq.worker.sink_thread.NO_ANSWER_S", 0.01)
    outage = path.outage
    batch_queue = path.open_batch_queue((1, 1), "a")
    with path.file.lock():
        await batch_queue.put(batch(b"1", cursor=1))
        await until(lambda: outage.down, "noticed")
        assert outage.down is not None
        assert "no answer for" in outage.down.error
    await batch_queue.join()
    await until(lambda: outage.down is None, "answers again")
