"""Finds the feed that uses up a worker's memory, and has it release its lease before the kernel ends the process.

Nothing is measured while there is enough. From `WATCHED` of the limit on, each step of a feed on the loop is
measured, including the one under way, and what grows between two checks without any of these is put down to the
thread of a blocking connector that worked most. At `RELEASE_AT` of the limit the feed that grew most releases its
lease, and runs apart from then on. What grows too fast for this is the monitor's to end (`feedq.worker.monitor`),
which names the feed that was noted here.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Final

from feedq.core.loss import Loss
from feedq.worker.activity import Activity, processor_s, resident_bytes

CHECK_S: Final = 0.1
WATCHED: Final = 0.5
RELEASE_AT: Final = 0.8
"""The part of the limit at which the feed that grew most releases its lease. What is left has to do until
the feed has ended."""
SHARE_MIN: Final = 0.5
"""The part of all growth that a feed must have: with less it is not known to be the one."""
GROWTH_MIN_BYTES: Final = 16 * 2**20
AGAIN_S: Final = 2.0
"""The time from one feed to the next: memory comes back only when the first has ended."""
MIB: Final = 2**20

ReleaseFeed = Callable[[int, Loss], None]


class MemoryWatch:
    """Checks the memory of this process. `look` is a duty of the watch."""

    def __init__(self, activity: Activity, *, limit_bytes: int, release: ReleaseFeed) -> None:
        self._activity, self._limit, self._release = activity, limit_bytes, release
        self._again_at = float("-inf")
        self._has_released = False
        self._used = 0
        self._on_threads: Counter[int] = Counter()
        self._attributed = 0
        self._processor: dict[int, float] = {}

    def look(self) -> float:
        """Check the memory, unless a feed is just ending. Returns in how long to do so again."""
        if (left_s := self._again_at - monotonic()) > 0:
            return left_s
        if self._has_released:
            give_back_memory()
        if has_released := self.check():
            self._again_at = monotonic() + AGAIN_S
        self._has_released = has_released
        return CHECK_S

    def check(self) -> bool:
        """Check the memory once, and return whether a feed was told to release its lease."""
        before, self._used = self._used, resident_bytes()
        if self._used < WATCHED * self._limit:
            self._activity.stop_measuring()
            self._on_threads.clear()
            self._attributed = 0
            return False
        self._activity.measure_growth(before)
        on_loop = self._growth_on_loop()
        self._attribute_rest(self._used - before if before else 0, on_loop.total())
        growth = on_loop + self._on_threads
        if not growth:
            return False
        (feed_id, grown), total = growth.most_common(1)[0], growth.total()
        self._activity.note_grower(feed_id, grown, total)
        if self._used < RELEASE_AT * self._limit:
            return False
        loss = loss_by_memory(self._activity, used=self._used, limit=self._limit)
        if not loss.is_certain:
            return False
        self._release(feed_id, loss)
        self._activity.growth.pop(feed_id, None)
        self._on_threads.pop(feed_id, None)
        return True

    def _growth_on_loop(self) -> Counter[int]:
        """By how much each feed has grown on the loop, with the step that is under way."""
        activity = self._activity
        growth = Counter(activity.growth)
        if began_with := activity.step_bytes:
            growth[activity.feed] += max(0, self._used - began_with)
        return growth

    def _attribute_rest(self, grown: int, on_loop: int) -> None:
        """Put what grew while no step of a feed did to the thread that worked most meanwhile."""
        rest, self._attributed = grown - (on_loop - self._attributed), on_loop
        # Read once: a thread may end at any moment.
        feeds = {t.thread: t.feed_id for t in self._activity.threads}
        now = {thread: processor_s(os.getpid(), thread) for thread in feeds}
        worked = {thread: used - self._processor.get(thread, used) for thread, used in now.items()}
        self._processor = now
        busiest = max(worked, key=worked.__getitem__, default=None)
        if rest > 0 and busiest is not None and worked[busiest] > 0:
            self._on_threads[feeds[busiest]] += rest


def loss_by_memory(activity: Activity, *, used: int, limit: int) -> Loss:
    """Explain why a process used so much, by what was noted in it; for a worker that may be dead already."""
    said = f"the worker used {used // MIB} MiB of {limit // MIB}"
    if activity.grower is None:
        return Loss("memory", said, activity.feed or None)
    feed_id, grown, total = activity.grower
    if grown < GROWTH_MIN_BYTES:
        return Loss("memory", said)
    said = f"{said}, and grew by {grown // MIB} MiB while this feed's code ran"
    return Loss("memory", said, feed_id, is_certain=grown >= SHARE_MIN * total)


def give_back_memory() -> None:
    """Have what was freed returned to the system, where the C library can do so."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
