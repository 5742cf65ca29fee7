"""Elected beats: any number may run, one of them schedules.

`celery beat` runs the scheduler's ``tick`` in its own loop and sleeps between; the election lives on a thread
beside it, because it listens, checks for crashed workers many times a second, and has a reconcile pass made
within milliseconds of a change: in this process, since the workers' processes are busy with streams, most of
all when one of them has died. The scheduler only asks the election whether to act. Its ticks ask the workers
for passes by message, which is the remedy for a beat whose own passes fail or hang.

The scheduler does not wait for the broker: what is to be sent goes into an outbox, and a third thread sends it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from random import Random
from threading import Event, Thread
from time import monotonic
from typing import Any
from uuid import uuid4

from celery.beat import Scheduler, SchedulingError
from celery.schedules import schedule

from feedq.celery.fleet_metrics import serve_beat
from feedq.celery.once import OPTION
from feedq.celery.tasks import run_reconcile, store, wake_later
from feedq.control.leader_threads import ExpectationJudge, LandedKeeper, LeaderThread
from feedq.control.store.election import Election, LivenessCheck
from feedq.core.lease import SECOND_CHECK_S
from feedq.core.limits import CHANGES_GATHERED_S, WHOLE_PASS_EVERY_S
from feedq.errors import FeedqError, Unavailable
from feedq.settings import Settings, settings
from feedq.telemetry.logs import LogEvent, database_event, log
from feedq.telemetry.watched_threads import watch_threads
from feedq.verbs.alerts import AlertSender
from feedq.worker.thread_pool import Lane, ThreadPool
from feedq.worker.threads import Outbox

CAMPAIGN_S = 0.2
"""The pause between two tries to be elected: a killed leader is replaced at once by a beat that waits for its
end, and within this, plus jitter, by one that cannot wait."""
LEADER_TTL_S = 5.0
"""A frozen beat is replaced after this long: some renewals, so that a busy database costs no beat its election. A
killed one is replaced at once."""
RENEW_S = 1.0
LOOK_INTERVAL_S = 0.01
"""How often the elected beat looks for workers without a session while something is under way, where it does not
wait for their end."""
CRASH_WAITERS = 32
"""Up to this many workers, the elected beat waits for the end of each with one session more, and hears of a crash
without looking. In a larger fleet the sessions would cost more than the looks do."""
CHECK_SHARE = 10
"""Checks take no more than one part in this many of the time: where each is slow, in a large fleet, they are
fewer."""
CHECKS_COMPARED = 8
"""The time of a check is that of the quickest of so many. One alone says little: a worker that dies with hundreds
of sockets keeps the machine busy, and that must not put off the check that finds it dead."""
CALM_CHECK_S = 1.0
"""The time between checks while nothing is under way and the end of each worker is waited for, or less when
something falls due before: a check finds then what nobody has said, such as a change made by hand."""
CALM_AFTER_S = 1.0
"""The time after the last change from which on nothing counts as under way. What has just joined opens its
sessions one after the other."""
JUDGE_AGAIN_S = 0.25
"""How soon a finding that a pass left as it was is reported again: after an outage nobody is declared gone for a
full ttl, and a pass for each check would only keep the database busy."""
SEND_GRACE_S = 0.3
"""What messages in the outbox get to leave when the beat stops."""
STALE_S = 60.0
"""A message of the beat that could not be sent for so long is left out: newer ones wait behind it."""
PASS_GRACE_S = 0.5
"""What a pass under way gets to end by itself when the beat stops; cut off, it has not happened."""
STANDBY_TICK_S = 1.0
"""How late a new leader's first tick may be."""
LEADER_TICK_S = 5.0
"""The time between ticks while nothing falls due: each costs more than a millisecond of Celery's own."""

logger = log(__name__)


class ElectionCandidate(Thread):
    """A beat as a candidate in the election."""

    def __init__(self, s: Settings) -> None:
        super().__init__(name="feedq-election", daemon=True)
        self._settings = s
        self._url = s.database_url.get_secret_value()
        self._holder = uuid4()
        self._rng = Random()
        self._stopping = Event()
        self._passes = Lane(ThreadPool())
        self._election: Election | None = None
        self._leads_until = float("-inf")
        self._check_after = float("-inf")
        self._last_pass: Future[None] | None = None
        """The pass that was asked for last."""
        self._whole_pass_at = float("-inf")
        self._whole_pass_is_due = False
        """Whether one has been asked for since a pass that only placed feeds."""
        self._woken = False
        """Whether something has changed since a pass was asked for."""
        self._crashed = 0
        """Workers that the last check found crashed."""
        self._judged_at = float("-inf")
        self._changed_at = float("-inf")
        """When a check last had to be followed by another one soon."""
        self.term = 0
        """Counts elections won."""

    @property
    def leads(self) -> bool:
        """Whether this beat may act. A leader that was frozen finds its time over when it wakes."""
        return monotonic() < self._leads_until

    def stop(self) -> None:
        self._stopping.set()
        if self._election is not None:
            self._election.interrupt()
        if self.is_alive():
            self.join(2.0)
        self._passes.close(timeout_s=PASS_GRACE_S, drop_waiting=True)

    def run(self) -> None:
        said_away = False
        while not self._stopping.is_set():
            try:
                self._serve()
                said_away = False
            except Unavailable as error:
                # Whoever lost its session saw an outage: nobody is taken for crashed until all had the time
                # to come back.
                self._check_after = monotonic() + self._settings.ttl_s
                if not said_away:
                    logger.warning(database_event(error), where="beat", error=str(error))
                said_away = True
            except Exception:
                logger.exception(LogEvent.UNEXPECTED, where="beat")
            finally:
                self._step_down()
            self._stopping.wait(self._rng.uniform(0.5, 1.5) * CAMPAIGN_S)

    def _serve(self) -> None:
        """Campaign, lead as long as it lasts, and return when stopped or no longer leader."""
        self._election = Election(
            self._url,
            holder=self._holder,
            host=socket.gethostname(),
            pid=os.getpid(),
            ttl_s=LEADER_TTL_S,
            settle_s=self._settings.settle_s,
            waiters=CRASH_WAITERS,
            rearm_s=CHANGES_GATHERED_S,
        )
        while not self._election.campaign():
            if self._election.end_frozen_leader():
                logger.warning(LogEvent.BEAT_REPLACED_FROZEN)
                self._election.wait(CHANGES_GATHERED_S)  # its session needs a moment to end
            else:
                self._election.stand_by(self._rng.uniform(0.5, 1.0) * CAMPAIGN_S)
            if self._stopping.is_set():
                return
        self.term += 1
        logger.info(LogEvent.BEAT_ELECTED, pid=os.getpid())
        self._lead(self._election)

    def _lead(self, election: Election) -> None:
        renew_at = monotonic()
        took_s: deque[float] = deque(maxlen=CHECKS_COMPARED)
        # What happened while nobody led was heard by nobody.
        self._ask()
        while not self._stopping.is_set():
            now = monotonic()
            if now >= renew_at:
                if not election.renew():
                    return
                # Anchored to before the round trip, like a worker's trust window.
                self._leads_until = now + LEADER_TTL_S
                renew_at = now + RENEW_S
            began = monotonic()
            check = election.check_liveness()
            took_s.append(monotonic() - began)
            self._judge(check)
            pause_s = self._pause_s(check, min(took_s))
            pause_s = min(pause_s, max(0.0, renew_at - monotonic()))
            if self._woken:
                # A thousand edits notify a thousand times; the reconcile that waits its turn serves them all.
                self._stopping.wait(CHANGES_GATHERED_S)
            elif election.wait(pause_s):
                self._woken = True

    def _pause_s(self, check: LivenessCheck, took_s: float) -> float:
        """Return the pause before the next liveness check, unless something is heard before."""
        now = monotonic()
        often_s = max(LOOK_INTERVAL_S, CHECK_SHARE * took_s)
        if check.suspected:
            return min(SECOND_CHECK_S, often_s)
        if (
            self._is_passing
            or self._woken
            or check.crashed
            or check.expired
            or check.is_due
            or not check.is_awaited
        ):
            self._changed_at = now
        if now < self._changed_at + CALM_AFTER_S:
            return often_s
        return max(often_s, CALM_CHECK_S if check.due_in_s is None else min(CALM_CHECK_S, check.due_in_s))

    def _judge(self, check: LivenessCheck) -> None:
        now = monotonic()
        # Of a worker whose last session was heard to end, the pass makes the second check.
        crashed = check.crashed + (check.suspected if check.has_heard else 0)
        before, self._crashed = self._crashed, crashed if now >= self._check_after else 0
        if self._crashed > before:
            logger.warning(LogEvent.WORKER_CRASHED, workers=self._crashed)
            self._judged_at = now
            self._ask()
        elif self._woken:
            self._ask()
        elif (
            (check.expired or check.is_due or self._crashed)
            and not self._is_passing
            and now >= self._judged_at + JUDGE_AGAIN_S
        ):
            self._judged_at = now
            self._ask()

    def _ask(self) -> None:
        """Have a pass begin, here, after this moment: one that waits for its turn serves this change, too."""
        self._woken = False
        if self._last_pass is None or self._last_pass.running() or self._last_pass.done():
            with contextlib.suppress(RuntimeError):  # this beat is stopping
                self._last_pass = self._passes.submit(self._pass_here)

    @property
    def _is_passing(self) -> bool:
        return self._last_pass is not None and not self._last_pass.done()

    def _pass_here(self) -> None:
        """Make a pass in this process, on the thread of passes. Soon after a whole pass only feeds that wait
        are placed."""
        now = monotonic()
        placing_only = now < self._whole_pass_at + WHOLE_PASS_EVERY_S
        if not placing_only:
            self._whole_pass_at, self._whole_pass_is_due = now, False
        try:
            run_reconcile(placing_only=placing_only)
        except Exception:
            logger.exception(LogEvent.UNEXPECTED, where="a pass of the beat")
        if placing_only and not self._whole_pass_is_due:
            self._whole_pass_is_due = True
            wake_later(WHOLE_PASS_EVERY_S)

    def _step_down(self) -> None:
        if self.leads:
            logger.info(LogEvent.BEAT_STEPPED_DOWN)
        self._leads_until = float("-inf")
        election, self._election = self._election, None
        if election is not None:
            election.close()


Send = Callable[[], object]
"""Sends one message, in bounded time or not; may raise whatever kombu does."""


def send_each(sends: Sequence[Send]) -> None:
    """Call each. Raises the last error of those that failed."""
    failed: Exception | None = None
    for send in sends:
        try:
            send()
        except Exception as error:  # noqa: BLE001 -- the others are to be sent all the same
            failed = error
    if failed is not None:
        raise failed


class ElectedScheduler(Scheduler):
    """Celery's scheduler, acting only while this beat is elected. Set as ``beat_scheduler``."""

    max_interval = LEADER_TICK_S
    producer = None
    """Celery's own would connect to the broker on the thread that ticks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("schedule_filename", None)
        super().__init__(*args, **kwargs)
        self.max_interval = min(self.max_interval, LEADER_TICK_S)
        self._outbox: Outbox[Send] = Outbox(send_each, stale_s=STALE_S, event=LogEvent.BEAT_SEND_FAILED)
        self._candidate: ElectionCandidate | None = None
        self._beside: Sequence[LeaderThread] = ()
        self._term = 0

    def tick(self, *args: Any, **kwargs: Any) -> float:
        if self._candidate is None:
            watch_threads()
            self._candidate = candidate = ElectionCandidate(settings())
            candidate.start()
            serve_beat(settings(), store, leads=lambda: candidate.leads, runs=candidate.is_alive)
            self._beside = (
                ExpectationJudge(settings(), lambda: store().expectations, lambda: candidate.leads),
                AlertSender(settings(), lambda: store().alerts, lambda: candidate.leads),
                LandedKeeper(lambda: store().landed, lambda: candidate.leads),
            )
            for thread in self._beside:
                thread.start()
        if not self._candidate.leads:
            return STANDBY_TICK_S
        if self._term != self._candidate.term:
            self._term = self._candidate.term
            self._forget_ticks_of_others()
        return float(super().tick(*args, **kwargs))

    def adjust(self, n: Any, drift: float = 0.0) -> Any:
        """Celery's own would wake 10 ms before an entry falls due, and tick without a pause until it does."""
        return super().adjust(n, drift)

    def _forget_ticks_of_others(self) -> None:
        """Skip what fell due before this beat was elected, which was another's to send: without this, each
        change of the elected one would send every ``crontab`` entry once more. Plain intervals have no ticks to
        repeat."""
        for entry in self.schedule.values():
            if type(entry.schedule) is not schedule:
                entry.last_run_at = entry.default_now()
        self._heap = None

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send the message of an entry that is due, or enqueue its run. Called by Celery's `tick`."""
        if not entry.options.get(OPTION):
            logger.info(LogEvent.BEAT_ENTRY_DUE, entry=entry.name, task=entry.task)
            self._outbox.put([partial(self.apply_async, entry, advance=False)])
            return
        try:
            self.apply_async(entry, advance=False)
        except (FeedqError, SchedulingError) as error:
            logger.warning(LogEvent.DISPATCH_FAILED, error=str(error))

    def close(self) -> None:
        if self._candidate is not None:
            self._candidate.stop()
        for thread in self._beside:
            thread.stop()
        self._outbox.close(timeout_s=SEND_GRACE_S)
        super().close()

    @property
    def info(self) -> str:
        return "    . elected -> one of all running beats"
