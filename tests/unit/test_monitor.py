"""What a monitor makes of stacks, memory and cgroups; how it ends workers is for the chaos tests."""

from __future__ import annotations

import faulthandler
import mmap
import os
import threading
from pathlib import Path
from uuid import uuid4

import pytest

from feedq.core.loss import Loss, parse_stacks
from feedq.core.model import NewWorker
from feedq.worker.activity import Activity, FeedThread, Limits
from feedq.worker.memory import GROWTH_MIN_BYTES, MemoryWatch
from feedq.worker.monitor import (
    DumpPipe,
    Monitor,
    make_private,
    report_losses,
)
from tests.fakes.control import current

pytestmark = pytest.mark.usefixtures("control")


def test_stacks_are_told_apart_and_begin_with_the_innermost_call(tmp_path: Path) -> None:
    with (tmp_path / "dump").open("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        stacks = parse_stacks(
            f"Fatal Python error: Aborted\n\n{file.read()}\nExtension modules: a, b (total: 2)\n"
        )
    (mine,) = (stack for stack in stacks if stack.ident == threading.get_ident())
    assert mine.is_current
    assert "test_stacks_are_told_apart" in mine.where
    assert __file__ in mine.where
    assert all(call.startswith("File ") for call in mine.calls)


def make_monitor(tmp_path: Path, limits: Limits) -> tuple[Activity, Monitor, int]:
    activity = Activity.create(tmp_path / "notes")
    theirs, ours = os.pipe()
    return activity, Monitor(activity, pid=os.getpid(), dump_pipe=DumpPipe(theirs), limits=limits), ours


def found(loss: Loss | None) -> Loss:
    assert loss is not None
    return loss


def test_a_worker_that_left_in_good_order_is_no_loss(tmp_path: Path) -> None:
    activity, monitor, _ = make_monitor(tmp_path, Limits(5, 0))
    activity.leave()
    assert monitor.explain_death() is None


def test_one_that_ended_without_a_word_holds_the_feed_in_hand_against_it_without_certainty(
    tmp_path: Path,
) -> None:
    activity, monitor, _ = make_monitor(tmp_path, Limits(5, 0))
    activity.feed = 12
    loss = found(monitor.explain_death())
    assert (loss.cause, loss.feed_id, loss.is_certain) == ("killed", 12, False)


def test_last_words_are_heard_even_of_one_that_was_about_to_leave(tmp_path: Path) -> None:
    activity, monitor, ours = make_monitor(tmp_path, Limits(5, 0))
    activity.leave()
    os.write(
        ours,
        b"Fatal Python error: Segmentation fault\n\nCurrent thread 0x01 (most recent call first):\n"
        b'  File "x.py", line 3 in f\n',
    )
    loss = found(monitor.explain_death())
    assert (loss.cause, loss.feed_id) == ("crashed", None)
    assert 'File "x.py", line 3 in f' in loss.said


def test_one_that_fills_its_memory_is_to_be_ended(tmp_path: Path) -> None:
    _, monitor, _ = make_monitor(tmp_path, Limits(5, 2**20))
    loss = found(monitor.check())
    assert loss.cause == "memory"


def test_it_blames_the_feed_that_the_worker_has_noted_to_grow_most(tmp_path: Path) -> None:
    activity, monitor, _ = make_monitor(tmp_path, Limits(5, 2**20))
    activity.feed = 7  # in hand
    for grown, blamed in ((GROWTH_MIN_BYTES, (12, True)), (GROWTH_MIN_BYTES - 1, (None, False))):
        activity.note_grower(12, grown, 2 * grown)
        loss = found(monitor.check())
        assert (loss.feed_id, loss.is_certain) == blamed
    activity.note_grower(12, 2 * GROWTH_MIN_BYTES, 5 * GROWTH_MIN_BYTES)
    loss = found(monitor.check())
    assert (loss.feed_id, loss.is_certain) == (12, False), "most of the growth was not its own"
    activity.stop_measuring()
    loss = found(monitor.check())
    assert (loss.feed_id, loss.is_certain) == (7, False), "nothing was measured"


def test_a_step_that_does_not_end_counts_as_growth_of_its_feed() -> None:
    activity = Activity.private()
    told: list[int] = []
    watch = MemoryWatch(activity, limit_bytes=2**20, release=lambda feed_id, _: told.append(feed_id))
    watch.check()
    activity.feed = 12  # in hand
    kept = bytearray(b"x" * 2 * GROWTH_MIN_BYTES)
    activity.stop_measuring()
    assert watch.check(), "the step had begun before anything was measured"
    assert told == [12]
    assert activity.grower is not None
    assert activity.grower[0] == 12
    del kept


def test_a_state_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(PermissionError, match="FEEDQ_STATE_DIR"):
        make_private(shared)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        make_private(link)


def test_the_notes_of_the_dead_are_reported_once_and_those_of_the_living_are_left(tmp_path: Path) -> None:
    store = current().fresh_store()
    dead, living = (
        store.workers.register(NewWorker(uuid4(), name, name, 1, "h", 1, "0"), ttl_s=60) for name in "ab"
    )
    living_notes = Activity.create(tmp_path / "worker-living")
    living_notes.begin_session(living.id)
    pid = os.fork()
    if not pid:
        Activity.create(tmp_path / "worker-dead").begin_session(dead.id)
        os._exit(0)
    os.waitpid(pid, 0)
    (tmp_path / "worker-garbage").write_bytes(b"?")
    report_losses(tmp_path, store)
    report_losses(tmp_path, store)
    assert [view.worker.id for view in store.workers.views() if view.worker.loss] == [dead.id]
    assert (tmp_path / "worker-living").exists()
    assert not (tmp_path / "worker-dead").exists()


def test_the_feed_that_grew_most_is_let_go_of_when_memory_is_nearly_full() -> None:
    activity = Activity.private()
    told: list[tuple[int, Loss]] = []
    watch = MemoryWatch(
        activity, limit_bytes=2**20, release=lambda feed_id, loss: told.append((feed_id, loss))
    )
    assert not watch.check(), "nothing has been measured yet"
    activity.growth[3] += GROWTH_MIN_BYTES // 4
    activity.growth[4] += GROWTH_MIN_BYTES
    assert watch.check()
    ((feed_id, loss),) = told
    assert (feed_id, loss.feed_id, loss.cause, loss.is_certain) == (4, 4, "memory", True)


def test_nobody_is_let_go_of_when_none_grew_more_than_all_others() -> None:
    activity = Activity.private()
    told: list[int] = []
    watch = MemoryWatch(activity, limit_bytes=2**20, release=lambda feed_id, _: told.append(feed_id))
    for feed_id in range(1, 9):
        activity.growth[feed_id] = GROWTH_MIN_BYTES
    assert not watch.check()
    assert told == []


class ShortLived(Activity):
    """Notes of one thread of a blocking connector, which has ended whenever it is looked for again."""

    looks = 0

    @property
    def threads(self) -> list[FeedThread]:
        self.looks += 1
        return [FeedThread(threading.get_native_id(), threading.get_ident(), 7)] if self.looks == 1 else []


def test_a_thread_that_ends_while_it_is_looked_at_does_not_end_the_memory_watch() -> None:
    activity = ShortLived.private()
    assert isinstance(activity, ShortLived)
    told: list[int] = []
    watch = MemoryWatch(activity, limit_bytes=2**20, release=lambda feed_id, _: told.append(feed_id))
    watch.check()
    activity.looks = 0
    # Not of the heap, where there may be room for it that was counted before.
    with mmap.mmap(-1, 2 * GROWTH_MIN_BYTES) as grown:
        grown.write(b"x" * len(grown))
        for _ in range(20):
            hash(grown[1:])  # the processor time that this thread is known by
        assert watch.check()
    assert told == [7]
