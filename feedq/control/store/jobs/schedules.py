"""Desired state: what people do with schedules, each verb one transaction that also writes history.

Edits look forward only. They move the watermark to ticks that are yet to come, reach no run that there is,
and fire no tick that is past.

Runs that somebody asks for (triggers, backfills, entries of beat) are made under the lock of the schedule's
row, as firing makes them, so that an overlap policy sees what others have made.

A pause that has to do with the declaration ends with the next one: it asked for the pause, or firing could decide
nothing by it. All others last until somebody resumes the schedule, or until their time is up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from feedq.control.store.channels import NotifyReason, notify_workers
from feedq.control.store.database import Connection, GivenRows, in_transaction, refused_when_taken
from feedq.control.store.jobs.listing import ScheduleListing, run_of
from feedq.control.store.jobs.rows import (
    DECLARED,
    NOT_BEGUN,
    SCHEDULE_COLUMNS,
    UNFIRED,
    cancel,
    locked,
    locked_row,
    notify_if_soon,
    notify_some,
    now,
    record,
    shown_schedule_from,
    stored_job,
    unfinished,
)
from feedq.control.store.jobs.turns import promote_behind
from feedq.control.store.protocol import call
from feedq.core.authorship import checked_reason
from feedq.core.model import Version, require_version
from feedq.core.schedule import ticks
from feedq.core.schedule.cron import parse
from feedq.core.schedule.model import (
    AGEING_S,
    BACKFILL_MAX,
    UNFINISHED,
    Run,
    RunKind,
    RunState,
    Schedule,
    ScheduleState,
)
from feedq.core.schedule.spec import BEAT_PREFIX, Overlap, ScheduleSpec
from feedq.core.schedule.ticks import fire_time
from feedq.core.values import instant
from feedq.errors import Conflict, InvalidInput
from feedq.telemetry.event_names import EventKind

TRIGGER_PREFIX = "trigger:"
KEY_MAX = 200
"""Characters of a run's key: it is part of the correlation id in every log line of the job."""
REMOVED = "its schedule was removed"
PURGED = "purged"
CANCELLED = "cancelled by hand"
_ASKED = GivenRows("key text, tick_at timestamptz, state text, reason text")
_INSERT = f"""
    INSERT INTO feedq.run
        (schedule_id, kind, key, tick_at, due_at, rank_at, start_by, state, reason, ended_at,
         job, queue, exclusive)
    SELECT %(schedule_id)s, %(kind)s, given.key, coalesce(given.tick_at, clock.now), clock.now,
        -- A microsecond apart, so that what is given in an order is taken in it.
        clock.now + (given.n - 1) * interval '1 microsecond' - make_interval(secs => %(ahead_s)s),
        clock.now + make_interval(secs => %(start_deadline_s)s),
        given.state, given.reason, CASE WHEN given.state NOT IN ('buffered', 'waiting') THEN clock.now END,
        CAST(%(job)s AS jsonb), %(queue)s, %(exclusive)s
    FROM (SELECT feedq.clock() AS now) clock, {_ASKED.numbered}
    ORDER BY given.n
    ON CONFLICT (schedule_id, key) DO NOTHING
    RETURNING id
"""


@dataclass(frozen=True, slots=True)
class _NewRun:
    """A run about to be written."""

    key: str
    tick_at: datetime | None
    """None: now."""
    state: RunState = RunState.WAITING
    reason: str | None = None


class ScheduleStore(ScheduleListing):
    """Declared schedules, and the runs that somebody asks for; `ScheduleListing` has what reads them.

    What needs a declaration that this release cannot read raises `Unreadable`; to edit, pause, purge and
    remove such a schedule, or to list it with others, does not. Thread-safe.
    """

    # -- declarations --------------------------------------------------------------------------------

    @in_transaction
    def add(self, c: Connection, spec: ScheduleSpec) -> Schedule:
        """Declare a schedule, whose first tick is the first after now. Raises `Conflict` when a schedule of that
        name exists."""
        # Jitter is hashed from the id, so the first tick cannot be known before it.
        sql = "SELECT nextval(pg_get_serial_sequence('feedq.schedule', 'id')) AS id, feedq.clock() AS now"
        given = c.execute(sql).one()
        state = ScheduleState.PAUSED if spec.paused else ScheduleState.ACTIVE
        reason = DECLARED if spec.paused else None
        schedule = Schedule(given.id, spec, state, None, reason, 1, None, None, 0, given.now, given.now)
        sql = f"""
            INSERT INTO feedq.schedule AS s (id, name, declaration, state, pause_reason,
                next_tick_at, next_fire_at, created_at, updated_at) OVERRIDING SYSTEM VALUE
            VALUES (%(id)s, %(name)s, CAST(%(declaration)s AS jsonb), %(state)s, %(pause_reason)s,
                %(next_tick_at)s, %(next_fire_at)s, %(now)s, %(now)s)
            RETURNING {SCHEDULE_COLUMNS}
        """
        begun = ticks.begin(schedule, now=given.now)
        added = _write(c, sql, {**_columns(begun), "now": given.now})
        record(c, EventKind.SCHEDULE_ADDED, schedule=spec.name, generation=1)
        if spec.paused:
            record(c, EventKind.SCHEDULE_PAUSED, schedule=spec.name, reason=DECLARED)
        notify_if_soon(c, [added], given.now)
        return added

    @in_transaction
    def edit(
        self, c: Connection, name: str, spec: ScheduleSpec, *, expected: Version | None = None
    ) -> Schedule:
        """Replace the declaration; an unchanged one keeps generation and watermark. With another timing the
        watermark goes to the first tick after now. ``spec.paused`` pauses. Without it a pause ends that was
        declared, or that firing made because it could decide nothing; never one by hand or by failures. Raises
        `NotFound`."""
        current = shown_schedule_from(locked_row(c, name))
        require_version(f"schedule {name!r}", current.version, expected)
        # Of one that cannot be read not even what does not change is known.
        is_readable = current.unreadable is None
        if name.startswith(BEAT_PREFIX) or spec.name.startswith(BEAT_PREFIX):
            raise Conflict(f"schedule {name!r} is an entry of beat_schedule.py; edit it there")
        if is_readable and spec == current.spec:
            return current
        at = now(c)
        edited = replace(current, spec=spec, generation=current.generation + 1, unreadable=None)
        edited = _with_watermark(edited, current, at) if is_readable else ticks.begin(edited, now=at)
        ends_pause = _ends_when_declared(current.pause_reason)
        if spec.paused and (ends_pause or current.state is ScheduleState.ACTIVE):
            edited = replace(edited, state=ScheduleState.PAUSED, pause_reason=DECLARED)
        elif ends_pause:
            edited = ticks.resumed(edited, now=at)
        changed = [key for key, value in spec if not is_readable or value != getattr(current.spec, key)]
        edited = _replace(c, edited)
        record(
            c, EventKind.SCHEDULE_EDITED, schedule=spec.name, generation=edited.generation, changed=changed
        )
        if edited.state is not current.state:
            is_paused = edited.state is ScheduleState.PAUSED
            kind = EventKind.SCHEDULE_PAUSED if is_paused else EventKind.SCHEDULE_RESUMED
            record(c, kind, schedule=spec.name, reason=edited.pause_reason or "declared so")
        notify_if_soon(c, [edited], at)
        return edited

    @in_transaction
    def remove(self, c: Connection, name: str, *, expected: Version | None = None) -> Schedule:
        """Remove a schedule and cancel its waiting runs; a running one may end, and its history stays until
        retention. One declared anew under the name is another schedule. Raises `NotFound`."""
        current = locked_row(c, name)
        require_version(f"schedule {name!r}", (current.id, current.generation), expected)
        cancelled = cancel(c, {current.id: REMOVED}, NOT_BEGUN)
        sql = f"""
            UPDATE feedq.schedule s SET removed_at = feedq.clock(), updated_at = feedq.clock()
            WHERE id = %(id)s RETURNING {SCHEDULE_COLUMNS}
        """
        removed = _write(c, sql, {"id": current.id, "name": name})
        record(c, EventKind.SCHEDULE_REMOVED, schedule=name, cancelled=cancelled)
        return removed

    @in_transaction
    def pause(
        self, c: Connection, name: str, *, until: datetime | None = None, reason: str | None = None
    ) -> Schedule:
        """Fire no tick until it is resumed. Raises `NotFound`."""
        if until is not None and until.utcoffset() is None:
            raise InvalidInput("until: must end with a Z or an offset such as +01:00")
        _check_reason(reason)
        current = locked_row(c, name)
        if (current.state, current.paused_until, current.pause_reason) == (
            ScheduleState.PAUSED,
            until,
            reason,
        ):
            return shown_schedule_from(current)
        sql = f"""
            UPDATE feedq.schedule s SET state = 'paused', paused_until = %(until)s, pause_reason = %(reason)s,
                updated_at = feedq.clock()
            WHERE id = %(id)s RETURNING {SCHEDULE_COLUMNS}
        """
        paused = _write(c, sql, {"id": current.id, "until": until, "reason": reason})
        said = None if until is None else until.isoformat()
        record(c, EventKind.SCHEDULE_PAUSED, schedule=name, reason=reason, until=said)
        return paused

    @in_transaction
    def resume(self, c: Connection, name: str) -> Schedule:
        """Let a schedule fire again, and forget its failures in a row. Raises `NotFound`."""
        current = locked(c, name)
        if current.state is ScheduleState.ACTIVE and current.failures == 0:
            return current
        # What was declared as paused is so no longer: to declare it once more is an edit again.
        resumed = replace(current, spec=current.spec.model_copy(update={"paused": None}), failures=0)
        if current.state is ScheduleState.PAUSED:
            at = now(c)
            resumed = ticks.resumed(resumed, now=at)
            record(c, EventKind.SCHEDULE_RESUMED, schedule=name)
            notify_if_soon(c, [resumed], at)
        return _replace(c, resumed)

    # -- runs that somebody asks for -----------------------------------------------------------------

    @in_transaction
    def trigger(
        self, c: Connection, name: str, *, key: str | None = None, job: ScheduleSpec | None = None
    ) -> Run:
        """A run now, even of a paused schedule, under its overlap policy: the run may come back as
        `SKIPPED_OVERLAP`. A key that was used before gives the run of then. ``job`` stands in for its own."""
        key = trigger_key(str(uuid4()) if key is None else _checked(key))
        schedule = locked(c, name)
        triggered = "SELECT id FROM feedq.run WHERE schedule_id = %(id)s AND key = %(key)s"
        found = c.execute(triggered, {"id": schedule.id, "key": key}).scalar_one_or_none()
        if found is not None:
            return run_of(c, found)
        spec = schedule.spec
        if spec.overlap is Overlap.CANCEL_OTHER:
            reason = (
                f"overlap is {Overlap.CANCEL_OTHER}, and the trigger {key.removeprefix(TRIGGER_PREFIX)} came"
            )
            cancel(c, {schedule.id: reason}, (*NOT_BEGUN, RunState.RUNNING))
        objection = ticks.refusal(spec, unfinished(c, [schedule.id])[schedule.id])
        state = RunState.WAITING if objection is None else RunState.SKIPPED_OVERLAP
        (made,) = self._insert(
            c,
            schedule,
            [_NewRun(key, None, state, objection)],
            kind=RunKind.TRIGGER,
            job=job,
            start_deadline_s=spec.start_deadline,
        )
        record(c, EventKind.RUN_TRIGGERED, schedule=name, run=made, key=key)
        return run_of(c, made)

    @in_transaction
    def backfill(self, c: Connection, name: str, ticks: Sequence[datetime]) -> tuple[int, int]:
        """Runs for these ticks, one after another, at most `BACKFILL_MAX`. Returns how many were made and how
        many ticks had a run already."""
        if any(tick.utcoffset() is None for tick in ticks):
            raise InvalidInput("a tick of a backfill must end with a Z or an offset such as +01:00")
        wanted = sorted(dict.fromkeys(ticks))
        if len(wanted) > BACKFILL_MAX:
            raise InvalidInput(
                f"a backfill of {len(wanted)} ticks is too large; at most {BACKFILL_MAX} at a time, "
                "so do the range in parts"
            )
        schedule = locked(c, name)
        # No start deadline: they wait for one another, as long as it takes.
        runs = [_NewRun(instant(tick), tick) for tick in wanted]
        made = self._insert(c, schedule, runs, kind=RunKind.BACKFILL)
        if made:
            ends = {"from": instant(wanted[0]), "to": instant(wanted[-1])}
            record(c, EventKind.RUNS_BACKFILLED, schedule=name, runs=len(made), **ends)
        return len(made), len(wanted) - len(made)

    @in_transaction
    def once(self, c: Connection, job: ScheduleSpec, key: str, tick_at: datetime) -> bool:
        """Enqueue a tick of a beat entry, unless that was done; False then. The schedule behind it,
        ``beat:entry``, is made as needed, and shown with all others. While that is paused nothing is enqueued."""
        _checked(key)
        schedule = _behind(c, job)
        if schedule.state is ScheduleState.PAUSED:
            return False
        return bool(self._insert(c, schedule, [_NewRun(key, tick_at)], kind=RunKind.BEAT))

    @in_transaction
    def purge(self, c: Connection, name: str) -> int:
        """Cancel its waiting runs. Returns how many."""
        purged = cancel(c, {locked_row(c, name).id: PURGED}, NOT_BEGUN)
        record(c, EventKind.RUNS_PURGED, schedule=name, runs=purged)
        return purged

    def cancel_run(self, run_id: int) -> Run:
        """Cancel a run that has not ended; the worker of a running one is told. Raises `NotFound`, or `Conflict`
        when it has ended."""
        run = self._cancel_run(run_id)
        promote_behind(self._database, [run_id])
        return run

    @in_transaction
    def _cancel_run(self, c: Connection, run_id: int) -> Run:
        sql = """
            UPDATE feedq.run SET state = 'cancelled', reason = %(reason)s, ended_at = feedq.clock()
            WHERE id = %(id)s AND state = ANY(%(states)s) RETURNING worker_id
        """
        states = [state.value for state in UNFINISHED]
        row = c.execute(sql, {"id": run_id, "states": states, "reason": CANCELLED}).one_or_none()
        run = run_of(c, run_id)
        if row is None:
            raise Conflict(
                f"run {run_id} of {run.schedule} has ended ({run.state}); there is nothing to cancel"
            )
        if row.worker_id is not None:
            notify_workers(c, [row.worker_id], NotifyReason.JOBS)
        record(c, EventKind.RUN_CANCELLED, schedule=run.schedule, run=run_id, key=run.key)
        return run

    def _insert(
        self,
        c: Connection,
        schedule: Schedule,
        runs: Sequence[_NewRun],
        *,
        kind: RunKind,
        job: ScheduleSpec | None = None,
        start_deadline_s: float | None = None,
    ) -> list[int]:
        """Write these runs, due now and one after another, and notify workers of those that may start. Returns the
        ids of those whose key was new."""
        job = schedule.spec if job is None else job
        one_by_one = schedule.spec.overlap is not Overlap.ALLOW_ALL
        if one_by_one:
            # Until it is their turn, and that may be at once.
            runs = [replace(r, state=RunState.BUFFERED) if r.state is RunState.WAITING else r for r in runs]
        parameters = {
            "schedule_id": schedule.id,
            "kind": kind.value,
            **_ASKED.of((run.key, run.tick_at, run.state.value, run.reason) for run in runs),
            "job": stored_job(job),
            "queue": job.queue,
            "ahead_s": job.priority * AGEING_S,
            "exclusive": one_by_one,
            "start_deadline_s": start_deadline_s,
        }
        made = [row.id for row in c.execute(_INSERT, parameters)]
        if one_by_one:
            call(c, "promote", int, schedules=[schedule.id])
        elif made:
            notify_some(c, len(made), NotifyReason.RUNS)
        return made


def _ends_when_declared(reason: str | None) -> bool:
    return reason is not None and (reason == DECLARED or reason.startswith(UNFIRED))


def _check_reason(reason: str | None) -> None:
    """Checks the reason that a person gives for a pause. Raises `InvalidInput`."""
    if reason is None:
        return
    checked_reason(reason)
    if _ends_when_declared(reason):
        # An edit would end the pause of somebody who wants it to last.
        raise InvalidInput(f"reason: {reason!r} is what feedq itself says; say it in other words")


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


def _declared(spec: ScheduleSpec) -> dict[str, str]:
    return {"name": spec.name, "declaration": spec.to_json()}


def _replace(c: Connection, schedule: Schedule) -> Schedule:
    """Write the whole row, which is locked."""
    sql = f"""
        UPDATE feedq.schedule s SET name = %(name)s, declaration = CAST(%(declaration)s AS jsonb),
            state = %(state)s, paused_until = %(paused_until)s, pause_reason = %(pause_reason)s,
            generation = %(generation)s, next_tick_at = %(next_tick_at)s, next_fire_at = %(next_fire_at)s,
            failures = %(failures)s, updated_at = feedq.clock()
        WHERE id = %(id)s RETURNING {SCHEDULE_COLUMNS}
    """
    return _write(c, sql, _columns(schedule))


def _columns(schedule: Schedule) -> dict[str, Any]:
    return {
        "id": schedule.id,
        **_declared(schedule.spec),
        "state": schedule.state.value,
        "paused_until": schedule.paused_until,
        "pause_reason": schedule.pause_reason,
        "generation": schedule.generation,
        "next_tick_at": schedule.next_tick_at,
        "next_fire_at": schedule.next_fire_at,
        "failures": schedule.failures,
    }


def _write(c: Connection, sql: str, columns: dict[str, Any]) -> Schedule:
    name = columns.get("name")  # which nothing but a declaration writes
    with refused_when_taken(f"schedule {name!r} exists already; `feedq schedule set` changes it"):
        return shown_schedule_from(c.execute(sql, columns).one())


def _behind(c: Connection, job: ScheduleSpec) -> Schedule:
    """The schedule behind an entry of beat, with this job, its row locked."""
    # Beat sends what it likes when it likes: one run does not wait for another.
    spec = job.model_copy(update={"overlap": Overlap.ALLOW_ALL})
    # Of two that make it at once the second waits here, finds it made, and changes nothing.
    sql = """
        INSERT INTO feedq.schedule AS s (name, declaration) VALUES (%(name)s, CAST(%(declaration)s AS jsonb))
        ON CONFLICT (name) WHERE removed_at IS NULL DO UPDATE
            SET declaration = excluded.declaration, generation = s.generation + 1,
                updated_at = feedq.clock()
            WHERE s.declaration <> excluded.declaration
    """
    c.execute(sql, _declared(spec))
    return locked(c, spec.name)


def trigger_key(said: str) -> str:
    """The key of a run that was triggered with this: ``trigger:invoice-4711``. No tick has such a key, whatever
    was said, so that no trigger takes the place of a tick."""
    return said if said.startswith(TRIGGER_PREFIX) else TRIGGER_PREFIX + said


def _checked(key: str) -> str:
    if not key or len(key) > KEY_MAX or not key.isprintable():
        raise InvalidInput(f"the key of a run must be printable, of 1 to {KEY_MAX} characters")
    return key
