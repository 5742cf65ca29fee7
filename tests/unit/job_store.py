"""Schedules and runs in memory, as far as the command line sees them: nothing falls due, and nothing is run.

What the real store guarantees is proved on the real one (``tests/contract``); this stands in where only the
commands themselves are in question.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from feedq.control.store.jobs.queues import QueueStore
from feedq.control.store.jobs.schedules import ScheduleStore, trigger_key
from feedq.control.store.postgresql import JobStore
from feedq.core.model import Version
from feedq.core.schedule import ticks
from feedq.core.schedule.model import (
    Job,
    Overlap,
    Queue,
    Run,
    RunKind,
    RunState,
    Schedule,
    ScheduleSpec,
    ScheduleState,
    ScheduleView,
    UnreadableSpec,
)
from feedq.core.values import instant
from feedq.errors import Conflict, NotFound, Unavailable
from tests.fakes import ManualClock

WORKER = UUID(int=7)


class MemorySchedules(ScheduleStore):
    """A `ScheduleStore` on dicts."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.by_name: dict[str, Schedule] = {}
        self.history: dict[int, Run] = {}
        self.no_worker: dict[str, str] = {}
        """Why no worker can run these schedules."""
        self.calls: list[str] = []
        """Names of the methods that read everything, and of those that change something."""
        self.before_change: Callable[[str], None] = lambda _: None
        self._ids = 0

    def add(self, spec: ScheduleSpec) -> Schedule:
        self._begin("add")
        if spec.name in self.by_name:
            raise Conflict(f"schedule {spec.name!r} exists already; `feedq schedule set` changes it")
        now = self.clock.now()
        state = ScheduleState.PAUSED if spec.paused else ScheduleState.ACTIVE
        schedule = Schedule(self._next_id(), spec, state, None, None, 1, None, None, 0, now, now)
        return self._keep(ticks.begin(schedule, now=now))

    def edit(self, name: str, spec: ScheduleSpec, *, expected: Version | None = None) -> Schedule:
        self._begin("edit")
        before = self.get(name)
        if before.spec == spec and before.unreadable is None:
            return before
        edited = replace(before, spec=spec, unreadable=None, generation=before.generation + 1)
        return self._keep(ticks.begin(edited, now=self.clock.now()))

    def remove(self, name: str, *, expected: Version | None = None) -> Schedule:
        self._begin("remove")
        found = self.get(name)
        del self.by_name[name]
        return found

    def pause(self, name: str, *, until: datetime | None = None, reason: str | None = None) -> Schedule:
        self._begin("pause")
        paused = replace(self.get(name), state=ScheduleState.PAUSED, paused_until=until, pause_reason=reason)
        return self._keep(paused)

    def resume(self, name: str) -> Schedule:
        self._begin("resume")
        found = self.get(name)
        spec = replace(found.spec, paused=False)
        return self._keep(
            replace(
                found,
                spec=spec,
                state=ScheduleState.ACTIVE,
                paused_until=None,
                pause_reason=None,
                failures=0,
            )
        )

    def trigger(self, name: str, *, key: str | None = None, job: Job | None = None) -> Run:
        self._begin("trigger")
        schedule = self.get(name)
        key = trigger_key(key or str(self._ids + 1))
        for run in self.history.values():
            if (run.schedule, run.key) == (name, key):
                return run
        busy = any(run.schedule == name and not run.state.is_final for run in self.history.values())
        if busy and schedule.spec.overlap is Overlap.SKIP:
            return self.make(name, key, state=RunState.SKIPPED_OVERLAP, reason="an earlier run has not ended")
        return self.make(name, key, kind=RunKind.TRIGGER, job=job or schedule.spec.job)

    def backfill(self, name: str, ticks: Sequence[datetime]) -> tuple[int, int]:
        self._begin("backfill")
        keys = {run.key for run in self.history.values() if run.schedule == name}
        new = [tick for tick in ticks if instant(tick) not in keys]
        for tick in new:
            self.make(name, instant(tick), kind=RunKind.BACKFILL, tick_at=tick)
        return len(new), len(ticks) - len(new)

    def purge(self, name: str) -> int:
        self._begin("purge")
        self.get(name)
        waiting = [r for r in self.history.values() if r.schedule == name and r.state is RunState.WAITING]
        for run in waiting:
            self.end(run.id, RunState.CANCELLED)
        return len(waiting)

    def cancel_run(self, run_id: int) -> Run:
        self._begin("cancel_run")
        run = self.run(run_id)
        if run.state.is_final:
            raise Conflict(
                f"run {run_id} of {run.schedule} has ended ({run.state}); there is nothing to cancel"
            )
        return self.end(run_id, RunState.CANCELLED)

    def once(self, entry: str, key: str, tick_at: datetime, job: Job) -> bool:
        raise NotImplementedError("the beat is not among the commands")

    def get(self, name: str) -> Schedule:
        try:
            return self.by_name[name]
        except KeyError:
            raise NotFound(f"no schedule named {name!r}; `feedq schedule list` shows them all") from None

    def view(self, name: str) -> ScheduleView:
        schedule = self.get(name)
        runs = [run for run in self.history.values() if run.schedule == name]
        begun = [run for run in runs if run.state is not RunState.WAITING]
        return ScheduleView(
            schedule,
            begun[-1] if begun else None,
            sum(run.state is RunState.WAITING for run in runs),
            sum(run.state is RunState.RUNNING for run in runs),
        )

    def views(
        self, *, prefix: str = "", after: str = "", state: ScheduleState | None = None, limit: int = 1_000
    ) -> list[ScheduleView]:
        self.calls.append("views")
        found = [s.spec.name for s in self.by_name.values() if state in (None, s.state)]
        names = [name for name in sorted(found) if name.startswith(prefix) and name > after]
        return [self.view(name) for name in names[:limit]]

    def urgent(self, *, failing: Sequence[str] = (), limit: int) -> list[ScheduleView]:
        """Those that fail, then the next to fire: the real order is proved on the real store."""
        self.calls.append("urgent")
        views = [self.view(name) for name in self.by_name]
        active = [v for v in views if v.schedule.state is ScheduleState.ACTIVE or v.schedule.failures]
        active.sort(key=lambda v: (not v.schedule.failures, v.schedule.next_fire_at, v.schedule.id))
        return active[:limit]

    def unserved(self, names: Collection[str]) -> dict[str, str]:
        return {name: why for name, why in self.no_worker.items() if name in names}

    def specs(self) -> dict[str, ScheduleSpec | UnreadableSpec]:
        self.calls.append("specs")
        return {
            name: s.spec if s.unreadable is None else UnreadableSpec(s.unreadable, s.spec.paused)
            for name, s in self.by_name.items()
            if name[:5] != "beat:"
        }

    def runs(
        self,
        name: str | None = None,
        *,
        states: Collection[RunState] = (),
        before: int | None = None,
        limit: int = 50,
    ) -> list[Run]:
        found = [
            run
            for run in reversed(self.history.values())
            if (name is None or run.schedule == name)
            and (not states or run.state in states)
            and (before is None or run.id < before)
        ]
        return found[:limit]

    def run(self, run_id: int) -> Run:
        try:
            return self.history[run_id]
        except KeyError:
            raise NotFound(f"no run {run_id}") from None

    def counts(self, name: str) -> Mapping[RunState, int]:
        runs = [run for run in self.history.values() if run.schedule == name]
        return {s: sum(run.ticks for run in runs if run.state is s) for s in {run.state for run in runs}}

    # -- what workers would do -----------------------------------------------------------------------

    def make(self, name: str, key: str, **fields: Any) -> Run:
        """A run that waits, unless the fields say otherwise."""
        schedule, now = self.get(name), self.clock.now()
        usual: dict[str, Any] = {
            "kind": RunKind.TICK,
            "tick_at": now,
            "ticks": 1,
            "due_at": now,
            "state": RunState.WAITING,
            "reason": None,
            "attempt": 1,
            "fence": 0,
            "worker_id": None,
            "worker": None,
            "started_at": None,
            "deadline_at": None,
            "ended_at": None,
            "job": schedule.spec.job,
        }
        run = Run(self._next_id(), schedule.id, name, key=key, **(usual | fields))
        if run.state.is_final:
            run = replace(run, ended_at=run.ended_at or now)
        self.history[run.id] = run
        return run

    def start(self, run_id: int) -> Run:
        changed = replace(
            self.run(run_id),
            state=RunState.RUNNING,
            worker="one",
            worker_id=WORKER,
            started_at=self.clock.now(),
            fence=1,
        )
        self.history[run_id] = changed
        return changed

    def end(self, run_id: int, state: RunState, *, reason: str | None = None) -> Run:
        ended = replace(self.run(run_id), state=state, ended_at=self.clock.now(), reason=reason)
        self.history[run_id] = ended
        return ended

    def _begin(self, change: str) -> None:
        self.before_change(change)
        self.calls.append(change)

    def _keep(self, schedule: Schedule) -> Schedule:
        self.by_name[schedule.spec.name] = schedule
        return schedule

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids


class MemoryQueues(QueueStore):
    """A `QueueStore` on a dict."""

    def __init__(self) -> None:
        self.by_name: dict[str, Queue] = {}
        self.busy: dict[str, tuple[int, int]] = {}

    def set(self, queue: Queue) -> None:
        self.by_name[queue.name] = queue

    def remove(self, name: str) -> None:
        if self.by_name.pop(name, None) is None:
            raise NotFound(f"job queue {name!r} has no limits")

    def all(self) -> list[Queue]:
        return [self.by_name[name] for name in sorted(self.by_name)]

    def depths(self) -> Mapping[str, tuple[int, int]]:
        return self.busy


class MemoryJobs(JobStore):
    """A `JobStore` without its workers' side: commands neither fire nor claim."""

    schedules: MemorySchedules
    queues: MemoryQueues

    def __init__(self, clock: ManualClock) -> None:
        self.schedules = MemorySchedules(clock)
        self.queues = MemoryQueues()

    def go_away_after(self, changes: int) -> None:
        """The database answers so many changes more."""
        left = [changes]

        def count(_: str) -> None:
            if not left[0]:
                raise Unavailable("control database is away")
            left[0] -= 1

        self.schedules.before_change = count
