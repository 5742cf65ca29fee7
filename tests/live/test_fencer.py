"""Fences in groups: who is blocked, superseded or gone must not cost the others their answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from uuid import UUID, uuid4

import pytest

from feedq.errors import SinkUnavailable, Unavailable
from feedq.settings import Settings
from feedq.sinks.base import Fenced, FenceOutcome, FenceRequest, Sink
from feedq.worker import sink_pool, sink_thread
from feedq.worker.sink_pool import SinkPool
from tests.fakes.sink import IDENTITY, FaultySink, SinkFile
from tests.unit.data_path import LIMIT_S, TARGET, DataPath, until


def request(feed_id: int, epoch: int) -> FenceRequest:
    return FenceRequest(feed_id, f"feed-{feed_id}", epoch, TARGET, IDENTITY)


async def fence(path: DataPath, *requests: FenceRequest) -> list[FenceOutcome]:
    async with asyncio.timeout(LIMIT_S):
        return list(await asyncio.gather(*(path.fencer.fence(one) for one in requests)))


async def test_a_control_database_that_is_away_costs_only_those_that_are_blocked() -> None:
    frozen = uuid4()
    file = SinkFile(locked={1})
    file.put_checkpoint(1, 1, frozen, cursor=7)
    asked: list[set[UUID]] = []

    def gone_workers(ids: Collection[UUID]) -> set[UUID]:
        asked.append(set(ids))
        if len(asked) < 3:
            raise Unavailable("for the test")
        return set(ids)

    with DataPath(file) as path:
        path.fencer._gone_workers = gone_workers
        blocked = asyncio.create_task(fence(path, request(1, 2)))
        await until(lambda: asked, "somebody is in the way")
        assert await fence(path, request(2, 1)) == [Fenced(2, 1, None, 0)]
        assert await blocked == [Fenced(1, 2, 7, 0)]
    assert asked == [{frozen}] * 3


async def test_of_many_feeds_that_are_fenced_together_the_first_go_on_long_before_the_last() -> None:
    feeds, steps_each = 200, 5
    done: list[tuple[int, int]] = []
    steps = 0

    async def begin(feed_id: int) -> None:
        nonlocal steps
        await path.fencer.fence(request(feed_id, 1))
        for _ in range(steps_each):
            steps += 1
            await asyncio.sleep(0)  # a turn of the loop
        done.append((feed_id, steps))

    with DataPath() as path:
        with path.fencer._lock:  # so that all of them are asked before any is fenced
            beginning = [asyncio.create_task(begin(feed_id)) for feed_id in range(feeds)]
            await asyncio.sleep(0)
        await asyncio.gather(*beginning)
    assert [feed_id for feed_id, _ in done] == list(range(feeds))
    assert done[feeds // 2][1] < 0.7 * feeds * steps_each, "half of them took nearly all of the work"


@pytest.mark.parametrize("broken", ["fence", "close"])
async def test_a_bug_in_a_sink_does_not_end_the_thread(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with DataPath() as path:
        await fence(path, request(1, 1))
        with monkeypatch.context() as failing:
            failing.setattr(FaultySink, broken, None)
            path.fencer.renew()
            with pytest.raises(SinkUnavailable, match="unexpected error"):
                await fence(path, request(2, 1))
        assert await fence(path, request(2, 1)) == [Fenced(2, 1, None, 0)]


def test_a_loop_that_closes_before_its_answer_does_not_end_the_thread() -> None:
    with DataPath() as path:
        path.file.put_checkpoint(1, 1, uuid4())
        path.file.locked.add(1)

        async def give_up() -> None:
            # Not cancelled: the loop simply ends, as that of a worker that leaves does.
            waiting = path.fencer.fence(request(1, 2))
            waiting.send(None)

        asyncio.run(give_up())
        path.file.locked.clear()
        asyncio.run(
            until(lambda: path.file.checkpoint(1).epoch == 2, "the fence that was given up is raised")
        )
        assert asyncio.run(fence(path, request(2, 1))) == [Fenced(2, 1, None, 0)]
        assert path.fencer._thread is not None
        assert path.fencer._thread.is_alive()


async def test_a_thread_that_ended_for_want_of_work_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_thread, "IDLE_S", 0.0)
    closed: list[bool] = []
    with DataPath() as path:
        monkeypatch.setattr(FaultySink, "close", lambda _: closed.append(path.fencer._thread is not None))
        for feed_id in (1, 2):
            assert await fence(path, request(feed_id, 1)) == [Fenced(feed_id, 1, None, 0)]
            await until(lambda: path.fencer._thread is None, "it has ended")
        await until(lambda: len(closed) >= 2, "its sessions are closed")
        assert all(closed), "and not when another thread may have begun"


async def test_feeds_that_are_expected_find_the_session_open(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []
    fences = FaultySink.fence

    def counted(
        sink: FaultySink, requests: Sequence[FenceRequest], *, lock_timeout_s: float
    ) -> list[FenceOutcome]:
        groups.append(len(requests))
        return fences(sink, requests, lock_timeout_s=lock_timeout_s)

    monkeypatch.setattr(FaultySink, "fence", counted)
    with DataPath() as path:
        path.fencer.expect_feeds()
        await until(lambda: groups, "the session is opened")
        assert await fence(path, request(1, 1)) == [Fenced(1, 1, None, 0)]
    assert groups == [0, 1]


async def test_the_sink_outlives_the_thread_until_the_worker_has_another_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink_thread, "IDLE_S", 0.0)
    with DataPath() as path:
        sinks: list[object] = []
        for feed_id in (1, 2, 3):
            if feed_id == 3:
                path.fencer.renew()
            await fence(path, request(feed_id, 1))
            await until(lambda: path.fencer._thread is None, "it has ended")
            sinks.append(path.fencer._sink)
    assert sinks[0] is sinks[1]
    assert sinks[1] is not sinks[2]


def test_a_worker_imports_what_its_sinks_need_before_feeds_come(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(url: str) -> type[Sink]:
        loaded.append(url)
        raise ImportError("for the test: a sink of others that is broken")

    monkeypatch.setattr(sink_pool, "load_sink", load)
    sinks = {"broken": "lake://nowhere/db", "other": "sqlite:///other.db"}
    settings = Settings.model_validate({"sinks": sinks})
    SinkPool(settings, worker_id=uuid4, gone_workers=set).load()
    assert set(sinks.values()) <= set(loaded)
