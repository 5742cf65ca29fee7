"""What a process notes of what it is doing can be read by others, and survives it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
import uvloop

from feedq.worker.activity import NO_FEED, Activity, current_feed


def in_loop(activity: Activity, body: Callable[[], object]) -> None:
    async def main() -> None:
        activity.watch_loop(asyncio.get_running_loop())
        result = body()
        if asyncio.iscoroutine(result):
            await result

    uvloop.run(main())


def test_a_step_of_a_feed_is_noted_while_it_runs_and_not_afterwards(tmp_path: Path) -> None:
    activity = Activity.create(tmp_path / "notes")
    others = Activity.read(tmp_path / "notes")
    seen: list[int] = []

    async def feed() -> str:
        seen.append(others.feed)
        await asyncio.sleep(0)
        seen.append(others.feed)
        return "done"

    async def body() -> None:
        current_feed.set(12)
        task = asyncio.create_task(feed())
        current_feed.set(NO_FEED)
        assert others.feed == NO_FEED
        assert await task == "done"
        assert others.feed == NO_FEED

    in_loop(activity, body)
    assert seen == [12, 12]


def test_a_task_that_a_feed_starts_is_the_feeds_and_others_are_nobodys(tmp_path: Path) -> None:
    activity = Activity.create(tmp_path / "notes")
    seen: dict[str, int] = {}

    async def note(who: str) -> None:
        seen[who] = activity.feed

    async def feed() -> None:
        await asyncio.gather(note("a library's task"))

    async def body() -> None:
        await asyncio.create_task(note("nobody's"))
        current_feed.set(3)
        await asyncio.create_task(feed())

    in_loop(activity, body)
    assert seen == {"nobody's": NO_FEED, "a library's task": 3}


def test_errors_and_cancellations_come_through(tmp_path: Path) -> None:
    activity = Activity.create(tmp_path / "notes")

    async def fails() -> None:
        raise ZeroDivisionError

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            assert activity.feed == 3

    async def body() -> None:
        current_feed.set(3)
        with pytest.raises(ZeroDivisionError):
            await asyncio.create_task(fails())
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_loop(activity, body)
    assert activity.feed == NO_FEED


def test_threads_are_noted_with_their_feeds(tmp_path: Path) -> None:
    activity = Activity.create(tmp_path / "notes")
    others = Activity.read(tmp_path / "notes")
    with activity.thread_of(7):
        (noted,) = others.threads
        assert (noted.thread, noted.ident, noted.feed_id) == (
            threading.get_native_id(),
            threading.get_ident(),
            7,
        )
    assert others.threads == []


def test_notes_survive_their_process_and_tell_that_it_is_dead(tmp_path: Path) -> None:
    path, session = tmp_path / "notes", uuid4()
    code = (
        "import os, sys; from pathlib import Path; from uuid import UUID\n"
        "from feedq.worker.activity import Activity\n"
        "notes = Activity.create(Path(sys.argv[1])); notes.begin_session(UUID(sys.argv[2])); notes.tick()\n"
        "print(flush=True); sys.stdin.read(); os.abort()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(session)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    assert not Activity.is_of_the_dead(path)
    process.communicate()
    assert Activity.is_of_the_dead(path)
    notes = Activity.read(path)
    assert (notes.pid, notes.session, notes.ticks, notes.is_leaving) == (process.pid, session, 1, False)
