"""Tells an event loop that stands still from a process that gets no processor.

A loop that has not turned for five seconds may be stuck in somebody's code, which will not end by itself; or the
machine may be so busy, or have been paused, that nothing in the process could run. Only the first is a reason to
end it. So the time that counts is that during which the process could have run and the loop did not turn: what its
threads waited for a processor is taken off, and so is whatever passed while it was stopped, or while the judge
itself did not run.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

CHECK_S = 0.5
"""How often a loop is checked; it notes that it turns twice as often."""
LAPSE_MAX_S = 2 * CHECK_S
"""What counts of the time between two checks: where it was longer, the judge had no processor either."""


@dataclass(frozen=True, slots=True)
class LoopSample:
    """A sample of what a process did up to one moment."""

    at: float
    """The moment of the sample, on the monotonic clock."""
    ticks: int
    waited_s: float = 0.0
    """The time that its threads have waited for a processor in all, as of the one that waited longest."""
    stopped: bool = False
    """Whether the process was stopped by a signal or a debugger."""


class StallClock:
    """Counts for how long a loop has stood still although it could have turned. Pure: fed with samples."""

    def __init__(self) -> None:
        self._last: LoopSample | None = None
        self.stalled_s = 0.0

    def observe(self, seen: LoopSample) -> float:
        """Add a sample, and return the seconds of standing still."""
        last, self._last = self._last, seen
        if last is None or seen.ticks != last.ticks:
            self.stalled_s = 0.0
        elif not seen.stopped and not last.stopped:
            lapse_s = min(seen.at - last.at, LAPSE_MAX_S)
            self.stalled_s += max(0.0, lapse_s - max(0.0, seen.waited_s - last.waited_s))
        return self.stalled_s


class Scheduling:
    """Reads what the kernel says of the threads of a process; where it says nothing, nothing is taken off."""

    def __init__(self, pid: int) -> None:
        self._process = Path(f"/proc/{pid}")
        self._waited: dict[str, int] = {}
        self._waited_s = 0.0
        self._ticks = -1

    @property
    def is_stopped(self) -> bool:
        with suppress(OSError):
            # After the name, which may hold spaces and brackets.
            return (self._process / "stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        return False

    def sample(self, ticks: int) -> LoopSample:
        """Take a sample of the process, whose loop has turned so often."""
        if ticks != self._ticks:
            # It turns, and the rest does not matter: to read it costs more than the sample.
            self._ticks = ticks
            self._waited.clear()
            return LoopSample(monotonic(), ticks, self._waited_s)
        return LoopSample(monotonic(), ticks, self.waited_s, self.is_stopped)

    @property
    def waited_s(self) -> float:
        """Adds up, from call to call, what that thread waited for a processor which waited longest in between."""
        longest = 0
        with suppress(OSError):
            for thread in os.listdir(self._process / "task"):
                with suppress(OSError, ValueError, IndexError):
                    waited = int((self._process / "task" / thread / "schedstat").read_text().split()[1])
                    longest = max(longest, waited - self._waited.get(thread, waited))
                    self._waited[thread] = waited
        self._waited_s += longest / 1e9
        return self._waited_s


def processor_s(pid: int, thread: int) -> float:
    """Processor time that a thread has used."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9
    return 0.0
