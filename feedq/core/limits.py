"""Not all at once: the limits on how fast or how many together, in one place. Pure.

Thousands of feeds that begin, move or end at the same moment would stand in each other's way, and in the way of
their sources. There are three ways to keep them from it:

* **a rate with a burst**: so many a second. `TokenBucket` counts what is read; connections wait in
  a `feedq.worker.pacing.Line`.
* **some at a time**: a portion goes, then the next one. Starts, stops, placements after a failover, moves.
* **a moment's wait**: what comes alone waits for others to go with it, or until what is more urgent is done.
  Claims, messages, news, audits, reconcile passes.

Here are the numbers and the arithmetic; whoever waits does so where it lives: `feedq.worker.pacing`,
the worker core, the lease client, the beat. How many rows a single statement takes stands beside the statement.

*Reading*: a bucket may go into debt. A batch is taken whole, however large, and whoever took it waits until
everything up to it is paid for. So the rate holds on average, and what comes at once is bounded by what a
connection buffers. Of several that share a bucket each waits for what was taken before, and for nothing that
was taken after: they come by turns, whoever has most to take.

*Connecting*: a line cuts time into slots, as many a second as its rate says, and lets one feed through at a
random moment of each. Several workers that share a rate have a line each, with a part of it: they do not beat in
step, and together they keep to the whole, the first moment included.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import float_info
from typing import Annotated, Final

from pydantic import Field

from feedq.core.values import EVERY_OTHER, StrictModel

# -- a rate with a burst -----------------------------------------------------------------------------

BURST_S: Final = 1.0
"""What a source that was slow may catch up with at full speed, in seconds of its rate."""
CONNECT_BURST_S: Final = 0.25
"""What may connect at once where nobody has for a while, in seconds of the rate; larger is a stampede."""
CONNECT_FIRST_S: Final = 1.0
"""The same for the first one of each line that shares the rate: in a fleet of up to so many seconds'
worth of workers a feed that comes alone does not wait, and if it is a stampede after all, the host sees no more
than this of it at once."""
FAILOVER_BURST_S: Final = 2.5
"""When a worker is lost, its feeds connect elsewhere ahead of the pace: so many seconds' worth of both rates at
once, made up for by a pause afterwards. Their hosts had these connections a moment ago. Never at a cold start."""
RATE_MIN: Final = 1e-9
"""Slots of more than thirty years are all alike, and would leave no digits for the time of day."""


class RateLimits(StrictModel):
    """How fast something may be read, on average; None means no limit."""

    rows_per_s: Annotated[float | None, Field(gt=0, le=1e12)] = None
    """Records per second."""
    bytes_per_s: Annotated[float | None, Field(gt=0, le=1e15)] = None
    """Bytes of records per second."""


UNLIMITED: Final = RateLimits.model_construct()


class TokenBucket:
    """Fills at a rate up to `BURST_S` of it; what is taken beyond that is a debt."""

    __slots__ = ("_at", "_full_rate_per_s", "_rate_per_s", "_taken", "_tokens")

    def __init__(self, rate_per_s: float, *, now: float) -> None:
        self._full_rate_per_s = self._rate_per_s = _positive(rate_per_s)
        self._tokens = self._rate_per_s * BURST_S
        self._taken = 0.0
        self._at = now

    def take(self, amount: float, *, now: float) -> float:
        """Returns the mark to wait for: how much was ever taken, up to this."""
        self._fill(now)
        self._tokens -= amount
        self._taken += amount
        return self._taken

    def wait_s(self, mark: float, *, now: float) -> float:
        """How long until what was taken up to a mark is paid for."""
        self._fill(now)
        # The difference first: both marks may be large.
        return max(0.0, (mark - self._taken - self._tokens) / self._rate_per_s)

    def share(self, share: float, *, now: float) -> None:
        """Keep to this part of the rate from now on; more than 0. A debt stays as large as it is; tokens saved up
        shrink with the rate."""
        self._fill(now)
        self._rate_per_s = _positive(self._full_rate_per_s * share)
        self._tokens = min(self._tokens, self._rate_per_s * BURST_S)

    def _fill(self, now: float) -> None:
        elapsed_s = max(0.0, now - self._at)
        self._at = max(self._at, now)
        self._tokens = min(self._tokens + elapsed_s * self._rate_per_s, self._rate_per_s * BURST_S)


def _positive(rate_per_s: float) -> float:
    # The smallest limits times a share are 0, which nobody could wait for.
    return max(rate_per_s, float_info.min)


# -- some at a time ----------------------------------------------------------------------------------

STARTS_TOGETHER: Final = 4
"""Feeds that go on, once they are fenced, in one turn of the event loop, at least. Each step of a coroutine waits
for its next turn: hundreds that take every step together would all reach their sources only when the last does."""
STARTS_TURNS: Final = 50
"""So many turns for all who wait: with thousands of feeds a turn is long, and few a turn would take all day."""
STOPS_TOGETHER: Final = 25
"""Feeds that a leaving worker stops together, where there is time. A feed has no connection from the moment it is
released until its successor has one; if all were released at once, each would wait for all the others."""
STOPS_PAUSE_S: Final = 0.05
"""Between them: about what the others take to place and connect so many."""
PLACED_FIRST: Final = 400
PLACED_GROWTH: Final = 2
"""Feeds of a dead worker that the first pass places. They connect while the next one places others, so many
times as many each time. With fewer, the second pass and their claims are in each other's way: half of the feeds
wait longer than all would for one pass."""
MOVE_WAIT_S: Final = 0.5
"""How long the last of the feeds that move at once waits for its turn to connect."""
MOVES_AT_LEAST: Final = 10
"""In a large fleet a worker's part of the pace to one host is small. Its feeds have many hosts, as a rule, and a
newcomer must not wait for its part for hours."""


def starts_together(waiting: int) -> int:
    """How many of the feeds that wait to begin go on in one turn of the event loop."""
    return max(STARTS_TOGETHER, waiting // STARTS_TURNS)


def stops_pause_s(feeds: int, *, within_s: float) -> float:
    """Between two portions of so many feeds that stop, all of which are to be told within so many seconds."""
    return min(STOPS_PAUSE_S, within_s * STOPS_TOGETHER / max(1, feeds))


def moves_together(
    connects_per_s: float, host_connects_per_s: Mapping[str, float], workers: int
) -> int | None:
    """How many feeds may be on their way to one worker: as many as it connects within `MOVE_WAIT_S` if all have
    the same source. None: any number.

    A feed that moves has no connection from when its owner lets go until its turn to connect comes at the new
    worker. So a worker is sent no more than its pace lets through in a moment, and more as these arrive. The
    limits are settings: 0 is none, and that of a host, ``*`` for any, is shared by all ``workers``.
    """
    rates = [connects_per_s, host_connects_per_s.get(EVERY_OTHER, 0.0) / max(1, workers)]
    limits = [rate for rate in rates if rate > 0]
    return max(MOVES_AT_LEAST, int(MOVE_WAIT_S * min(limits))) if limits else None


# -- a moment's wait ---------------------------------------------------------------------------------

CLAIMS_GATHERED_S: Final = 0.015
CLAIMS_FEW: Final = 8
"""So few claims that follow others within `CLAIMS_GATHERED_S` are gathered for as long: messages come one at a
time, and a statement for each would cost more than the wait. What a notification brings comes all together, and
never waits."""
AUDITS_GATHERED_S: Final = 0.1
"""The audits that many feeds ask for at once are one."""
NEWS_GATHERED_S: Final = 0.2
"""How long news of a feed's status waits for others, to be one statement with them."""
TASK_EVENTS_GATHERED_S: Final = 0.2
"""The same for Celery's task events. In a rush of messages each would be a round trip to the broker."""
CHANGES_GATHERED_S: Final = 0.01
"""Between looks of the beat while more changes than the passes under way may serve."""
WHOLE_PASS_EVERY_S: Final = 0.15
"""Passes that come sooner after a whole one only place the feeds that wait: while a worker lets go of hundreds,
some at a time, all else would cost the CPU that they connect with."""
AFTER_FAST_PATH_S: Final = 0.25
"""From the pass that places the last feeds of a dead worker to the one that does all else: at once, it would
cost them the CPU to connect with."""
MESSAGES_AT_ONCE: Final = 20
MESSAGES_AFTER_S: Final = 0.3
FEEDS_BEGUN_PER_S: Final = 1_000
"""Feeds that a worker begins a second, when thousands begin: their messages wait for so much longer."""
DISPATCH_TIMEOUT_S: Final = 10.0
"""An assignment that was not claimed for this long is made anew, under a new epoch: what a lost message costs. It
exceeds the time that a worker under full load takes to claim."""
MESSAGES_BY: Final = 0.8
"""Of the dispatch time-out: so much of it is over, at most, when messages leave. Later, a worker that lost its
notification would hear of its feeds only after they have been given to others."""


def messages_wait_s(feeds: int) -> float:
    """How long more than `MESSAGES_AT_ONCE` messages wait for the feeds that they are about, of which so many
    are one worker's at most. Who is notified has claimed by then, and connects: to send and to hear of hundreds
    of messages costs as much."""
    return min(MESSAGES_AFTER_S + feeds / FEEDS_BEGUN_PER_S, MESSAGES_BY * DISPATCH_TIMEOUT_S)
