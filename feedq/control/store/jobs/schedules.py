"""Desired state: what people do with schedules and queues, each verb one transaction that also writes history.
`feedq/control/sql/schedules.sql` has what is written, and under which locks.

Edits look forward only. They move the watermark to ticks that are yet to come, reach no run that there is,
and fire no tick that is past.

Runs that somebody asks for (triggers, backfills, entries of beat) are made under the lock of the schedule's
row, as firing makes them, so that an overlap policy sees what others have made.

A pause that has to do with the declaration ends with the next one: it asked for the pause, or firing could decide
nothing by it. All others last until somebody resumes the schedule, or until their time is up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
from psycopg2.errors import UniqueViolation

from feedq.control.store import history
from feedq.control.store.database import Aggregate, Connection, in_transaction
from feedq.control.store.jobs.firing import UNFIRED
from feedq.control.store.jobs.listing import (
    DECLARED,
    SCHEDULE_COLUMNS,
    UNFINISHED,
    ScheduleListing,
    no_schedule,
    run_of,
    schedule_from,
    shown_schedule_from,
)
from feedq.control.store.jobs.runs import promote_behind
from feedq.control.store.protocol import SCHEMA, call, document
from feedq.core.authorship import checked_reason
from feedq.core.model import Version, require_version
from feedq.core.moments import instant
from feedq.core.schedule import ticks
from feedq.core.schedule.cron import parse
from feedq.core.schedule.model import (
    BACKFILL_MAX,
    NewRun,
    QueueDepth,
    Run,
    RunKind,
    RunState,
    Schedule,
    ScheduleState,
)
from feedq.core.schedule.spec import BEAT_PREFIX, NOT_OF_JOB, Overlap, Queue, ScheduleSpec
from feedq.core.schedule.ticks import Unfinished, fire_time
from feedq.errors import Conflict, InvalidInput, NotFound
from feedq.telemetry.event_names import EventKind

TRIGGER_PREFIX = "trigger:"
KEY_MAX = 200
"""Characters of a run's key: it is part of the correlation id in every log line of the job."""
NOT_BEGUN = ("buffered", "waiting")
"""What is cancelled of a schedule without touching what runs."""


class _Made(msgspec.Struct):
    ids: list[int]
    """Runs whose key was new."""


class ScheduleStore(ScheduleListing):
    """Declared schedules, and the runs that somebody asks for; `ScheduleListing` has what reads them.

    Methods that need a declaration which this release cannot read raise `Unreadable`; such a schedule can
    still be edited, paused, purged, removed and listed. Thread-safe.
    """

    # -- declarations --------------------------------------------------------------------------------

    @in_transaction
    def add(self, c: Connection, spec: ScheduleSpec) -> Schedule:
        """Declare a schedule, whose first tick is the first after now. Raises `Conflict` when a schedule of that
        name exists."""
        sql = f"SELECT {SCHEDULE_COLUMNS} FROM {SCHEMA}.add_schedule(%(name)s, %(declaration)s) s"
        with _refused_when_taken(spec.name):
            row = c.execute(sql, {"name": spec.name, "declaration": spec.to_json()}).one()
        state = ScheduleState.PAUSED if spec.paused else ScheduleState.ACTIVE
        reason = DECLARED if spec.paused else None
        at = row.created_at
        schedule = Schedule(row.id, spec, state, None, reason, 1, None, None, 0, at, at)
        added = _put(c, ticks.begin(schedule, now=at))
        _record(c, EventKind.SCHEDULE_ADDED, schedule=spec.name, generation=1)
        if spec.paused:
            _record(c, EventKind.SCHEDULE_PAUSED, schedule=spec.name, reason=DECLARED)
        return added

    @in_transaction
    def edit(
        self, c: Connection, name: str, spec: ScheduleSpec, *, expected: Version | None = None
    ) -> Schedule:
        """Replace the declaration; an unchanged one keeps generation and watermark. With another timing the
        watermark goes to the first tick after now. ``spec.paused`` pauses. Without it a pause ends that was
        declared, or that firing made because it could decide nothing; never one by hand or by failures. Raises
        `NotFound`."""
        row = _locked(c, name)
        current = shown_schedule_from(row)
        require_version(f"schedule {name!r}", current.version, expected)
        # Of one that cannot be read not even what does not change is known.
        is_readable = current.unreadable is None
        if name.startswith(BEAT_PREFIX) or spec.name.startswith(BEAT_PREFIX):
            raise Conflict(f"schedule {name!r} is an entry of beat_schedule.py; edit it there")
        if is_readable and spec == current.spec:
            return current
        edited = replace(current, spec=spec, generation=current.generation + 1, unreadable=None)
        edited = _with_watermark(edited, current, row.at) if is_readable else ticks.begin(edited, now=row.at)
        ends_pause = _ends_when_declared(current.pause_reason)
        if spec.paused and (ends_pause or current.state is ScheduleState.ACTIVE):
            edited = replace(edited, state=ScheduleState.PAUSED, pause_reason=DECLARED)
        elif ends_pause:
            edited = ticks.resumed(edited, now=row.at)
        changed = [key for key, value in spec if not is_readable or value != getattr(current.spec, key)]
        edited = _put(c, edited)
        _record(
            c, EventKind.SCHEDULE_EDITED, schedule=spec.name, generation=edited.generation, changed=changed
        )
        if edited.state is not current.state:
            is_paused = edited.state is ScheduleState.PAUSED
            kind = EventKind.SCHEDULE_PAUSED if is_paused else EventKind.SCHEDULE_RESUMED
            _record(c, kind, schedule=spec.name, reason=edited.pause_reason or "declared so")
        return edited

    @in_transaction
    def remove(self, c: Connection, name: str, *, expected: Version | None = None) -> Schedule:
        """Remove a schedule and cancel its waiting runs; a running one may end, and its history stays until
        retention. One declared anew under the name is another schedule. Raises `NotFound`."""
        row = _locked(c, name)
        require_version(f"schedule {name!r}", (row.id, row.generation), expected)
        cancelled = call(c, "remove_schedule", int, which=row.id)
        _record(c, EventKind.SCHEDULE_REMOVED, schedule=name, cancelled=cancelled)
        return shown_schedule_from(row)

    @in_transaction
    def pause(
        self, c: Connection, name: str, *, until: datetime | None = None, reason: str | None = None
    ) -> Schedule:
        """Fire no tick until it is resumed. Raises `NotFound`."""
        if until is not None and until.utcoffset() is None:
            raise InvalidInput("until: must end with a Z or an offset such as +01:00")
        _check_reason(reason)
        current = shown_schedule_from(_locked(c, name))
        paused = replace(current, state=ScheduleState.PAUSED, paused_until=until, pause_reason=reason)
        if paused != current:
            paused = _put(c, paused, as_declared=True)
            said = None if until is None else until.isoformat()
            _record(c, EventKind.SCHEDULE_PAUSED, schedule=name, reason=reason, until=said)
        return paused

    @in_transaction
    def resume(self, c: Connection, name: str) -> Schedule:
        """Let a schedule fire again, and forget its failures in a row. Raises `NotFound`."""
        row = _locked(c, name)
        current = schedule_from(row)
        if current.state is ScheduleState.ACTIVE and current.failures == 0:
            return current
        # What was declared as paused is so no longer: to declare it once more is an edit again.
        resumed = replace(current, spec=current.spec.model_copy(update={"paused": None}), failures=0)
        if current.state is ScheduleState.PAUSED:
            resumed = ticks.resumed(resumed, now=row.at)
            _record(c, EventKind.SCHEDULE_RESUMED, schedule=name)
        return _put(c, resumed)

    # -- runs that somebody asks for -----------------------------------------------------------------

    @in_transaction
    def trigger(
        self, c: Connection, name: str, *, key: str | None = None, job: ScheduleSpec | None = None
    ) -> Run:
        """A run now, even of a paused schedule, under its overlap policy: the run may come back as
        `SKIPPED_OVERLAP`. A key that was used before gives the run of then. ``job`` stands in for its own."""
        key = trigger_key(str(uuid4()) if key is None else _checked(key))
        row = _locked(c, name)
        spec = schedule_from(row).spec
        triggered = "SELECT id FROM feedq.run WHERE schedule_id = %(id)s AND key = %(key)s"
        found = c.execute(triggered, {"id": row.id, "key": key}).scalar_one_or_none()
        if found is not None:
            return run_of(c, found)
        unfinished = Unfinished(row.waiting, row.running, row.of_backfills)
        if spec.overlap is Overlap.CANCEL_OTHER:
            reason = (
                f"overlap is {Overlap.CANCEL_OTHER}, and the trigger {key.removeprefix(TRIGGER_PREFIX)} came"
            )
            _cancel(c, row.id, reason, (*NOT_BEGUN, "running"))
        objection = ticks.refusal(spec, unfinished)
        run = NewRun(
            *(row.id, RunKind.TRIGGER, key, row.at, row.at),
            _at_first(spec) if objection is None else RunState.SKIPPED_OVERLAP,
            objection,
            start_by=None if spec.start_deadline is None else row.at + timedelta(seconds=spec.start_deadline),
        )
        (made,) = _make(c, [run], job)
        _record(c, EventKind.RUN_TRIGGERED, schedule=name, run=made, key=key)
        return run_of(c, made)

    @in_transaction
    def backfill(self, c: Connection, name: str, ticks: Sequence[datetime]) -> tuple[int, int]:
        """Runs for these ticks, one after another, at most `BACKFILL_MAX`. A tick that falls due meanwhile is not
        skipped for them, and goes before those that have not begun. Returns how many were made and how many ticks
        had a run already."""
        if any(tick.utcoffset() is None for tick in ticks):
            raise InvalidInput("a tick of a backfill must end with a Z or an offset such as +01:00")
        wanted = sorted(dict.fromkeys(ticks))
        if len(wanted) > BACKFILL_MAX:
            raise InvalidInput(
                f"a backfill of {len(wanted)} ticks is too large; at most {BACKFILL_MAX} at a time, "
                "so do the range in parts"
            )
        row = _locked(c, name)
        state = _at_first(schedule_from(row).spec)
        # No start deadline: they wait for one another, as long as it takes.
        made = _make(
            c, [NewRun(row.id, RunKind.BACKFILL, instant(tick), tick, row.at, state) for tick in wanted]
        )
        if made:
            ends = {"from": instant(wanted[0]), "to": instant(wanted[-1])}
            _record(c, EventKind.RUNS_BACKFILLED, schedule=name, runs=len(made), **ends)
        return len(made), len(wanted) - len(made)

    @in_transaction
    def once(self, c: Connection, job: ScheduleSpec, key: str, tick_at: datetime) -> bool:
        """Enqueue a tick of a beat entry, unless that was done; False then. The schedule behind it,
        ``beat:entry``, is made as needed, and shown with all others. While that is paused nothing is enqueued."""
        _checked(key)
        # Beat sends what it likes when it likes: one run does not wait for another.
        spec = job.model_copy(update={"overlap": Overlap.ALLOW_ALL})
        call(c, "put_entry_of_beat", bool, name=spec.name, declaration=spec.to_json())
        row = _locked(c, spec.name)
        if row.state == ScheduleState.PAUSED:
            return False
        return bool(_make(c, [NewRun(row.id, RunKind.BEAT, key, tick_at, row.at, RunState.WAITING)]))

    @in_transaction
    def purge(self, c: Connection, name: str) -> int:
        """Cancel its waiting runs. Returns how many."""
        purged = _cancel(c, _locked(c, name).id, "purged", NOT_BEGUN)
        _record(c, EventKind.RUNS_PURGED, schedule=name, runs=purged)
        return purged

    def cancel_run(self, run_id: int) -> Run:
        """Cancel a run that has not ended; the worker of a running one is told. Raises `NotFound`, or `Conflict`
        when it has ended."""
        run = self._cancel_run(run_id)
        promote_behind(self._database, [run_id])
        return run

    @in_transaction
    def _cancel_run(self, c: Connection, run_id: int) -> Run:
        was_unfinished = call(c, "cancel_run", bool, which=run_id)
        run = run_of(c, run_id)
        if not was_unfinished:
            raise Conflict(
                f"run {run_id} of {run.schedule} has ended ({run.state}); there is nothing to cancel"
            )
        _record(c, EventKind.RUN_CANCELLED, schedule=run.schedule, run=run_id, key=run.key)
        return run


def _ends_when_declared(reason: str | None) -> bool:
    return reason is not None and (reason == DECLARED or reason.startswith(UNFIRED))


def _check_reason(reason: str | None) -> None:
    """Checks the reason that a person gives for a pause. Raises `InvalidInput`."""
    if reason is None:
        return
    checked_reason(reason)
    if _ends_when_declared(reason):
        # An edit would end the pause of somebody who wants it to last.
        raise InvalidInput(f"reason: {reason!r} is a reason that feedq itself gives; use other words")


def _with_watermark(edited: Schedule, before: Schedule, at: datetime) -> Schedule:
    spec, tick = edited.spec, before.next_tick_at
    if _what_ticks(spec) != _what_ticks(before.spec):
        return ticks.begin(edited, now=at)
    if spec.jitter != before.spec.jitter and tick is not None:
        return replace(edited, next_fire_at=fire_time(spec, schedule_id=edited.id, tick=tick))
    return edited


def _what_ticks(spec: ScheduleSpec) -> tuple[Any, ...]:
    """All that the ticks follow from; the name does by the ``H`` of cron expressions, which is hashed from it."""
    rules = [parse(expression, name=spec.name) for expression in spec.cron]
    return rules, spec.every, spec.anchor, spec.at, spec.zone, spec.start, spec.end, spec.exclude


def _locked(c: Connection, name: str) -> Any:
    """Locks a schedule and returns its `SCHEDULE_COLUMNS`, the time, and how many of its runs have not ended.
    Raises `NotFound`."""
    sql = f"""
        SELECT {SCHEDULE_COLUMNS}, held.at, held.waiting, held.running, held.of_backfills
        FROM {SCHEMA}.lock_schedule(%(name)s) held CROSS JOIN LATERAL (SELECT (held.schedule).*) s
    """
    row = c.execute(sql, {"name": name}).one_or_none()
    if row is None:
        raise no_schedule(name)
    return row


def _put(c: Connection, schedule: Schedule, *, as_declared: bool = False) -> Schedule:
    """Write a schedule that is locked; ``as_declared``: without its declaration."""
    sql = f"SELECT {SCHEDULE_COLUMNS} FROM {SCHEMA}.put_schedule(%(new)s, %(as_declared)s) s"
    with _refused_when_taken(schedule.spec.name):
        row = c.execute(sql, {"new": document(schedule), "as_declared": as_declared}).one()
    return shown_schedule_from(row)


@contextmanager
def _refused_when_taken(name: str) -> Iterator[None]:
    try:
        yield
    except UniqueViolation:
        raise Conflict(f"schedule {name!r} exists already; `feedq schedule set` changes it") from None


def _at_first(spec: ScheduleSpec) -> RunState:
    """Where runs go one at a time, each is buffered until it is its turn, and that may be at once."""
    return RunState.WAITING if spec.overlap is Overlap.ALLOW_ALL else RunState.BUFFERED


def _make(c: Connection, runs: Sequence[NewRun], job: ScheduleSpec | None = None) -> list[int]:
    """Make these runs of a schedule that is locked, one after another, and return the ids of those whose key was
    new. ``job`` stands in for the schedule's own."""
    stored = None if job is None else job.to_json()
    given = {"runs": document(runs), "job": stored, "not_of_job": list(NOT_OF_JOB)}
    return call(c, "make_runs", _Made, **given).ids


def _cancel(c: Connection, schedule_id: int, reason: str, states: Sequence[str]) -> int:
    given = {"schedules": [schedule_id], "reasons": [reason], "states": list(states), "waits": True}
    return call(c, "cancel_runs", int, **given)


def _record(c: Connection, kind: EventKind, **detail: Any) -> None:
    """Write an event. It names the schedule and does not point to it: history outlives it."""
    history.record(c, kind, detail={key: value for key, value in detail.items() if value is not None})


def trigger_key(said: str) -> str:
    """The key of a run that was triggered with this: ``trigger:invoice-4711``. No tick has such a key, whatever
    was said, so that no trigger takes the place of a tick."""
    return said if said.startswith(TRIGGER_PREFIX) else TRIGGER_PREFIX + said


def _checked(key: str) -> str:
    if not key or len(key) > KEY_MAX or not key.isprintable():
        raise InvalidInput(f"the key of a run must be 1 to {KEY_MAX} printable characters")
    return key


class QueueStore(Aggregate):
    """Limits of job queues. Thread-safe."""

    @in_transaction
    def set(self, c: Connection, queue: Queue) -> None:
        """Declare the limits of a queue. Starts that it has saved up stay its own, up to the new burst."""
        call(c, "put_queue", bool, **dict(queue))
        _record(
            c, EventKind.QUEUE_CHANGED, **{"queue" if key == "name" else key: value for key, value in queue}
        )

    @in_transaction
    def remove(self, c: Connection, name: str) -> None:
        """Lift the limits of a queue. Its runs stay. Raises `NotFound`."""
        if not call(c, "remove_queue", bool, named=name):
            raise NotFound(f"job queue {name!r} has no limits to remove")
        _record(c, EventKind.QUEUE_REMOVED, queue=name)

    @in_transaction
    def all(self, c: Connection) -> list[Queue]:
        """The queues that have limits."""
        return _queues(c)

    @in_transaction
    def listed(self, c: Connection) -> list[QueueDepth]:
        """The queues that have limits or unfinished runs, by name."""
        sql = f"""
            SELECT queue, count(*) FILTER (WHERE state <> 'running')::int AS waiting,
                count(*) FILTER (WHERE state = 'running')::int AS running
            FROM feedq.run WHERE {UNFINISHED} GROUP BY queue
        """
        depths = {row.queue: (row.waiting, row.running) for row in c.execute(sql)}
        queues = {queue.name: queue for queue in _queues(c)}
        names = sorted(queues.keys() | depths.keys())
        return [QueueDepth(name, queues.get(name), *depths.get(name, (0, 0))) for name in names]


def _queues(c: Connection) -> list[Queue]:
    sql = "SELECT name, rate_per_s, burst, concurrency FROM feedq.job_queue ORDER BY name"
    return [Queue.of(row._asdict()) for row in c.execute(sql)]
