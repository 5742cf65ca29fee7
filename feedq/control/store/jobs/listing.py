"""Schedules and runs for people: one, pages of them, histories, numbers, and what no worker can serve.

Reads only. A page is a few lookups in indexes a row, however many schedules and runs there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedq.control.store.database import Aggregate, Connection, in_transaction
from feedq.core.passwords import mask_url
from feedq.core.schedule.model import (
    Run,
    RunKind,
    RunState,
    Schedule,
    ScheduleState,
    ScheduleView,
)
from feedq.core.schedule.spec import BEAT_PREFIX, ScheduleSpec
from feedq.errors import InvalidInput, NotFound, Unreadable

PAGE_MAX = 1_000
"""Schedules or runs of one answer."""
LAST_OF_ALL = "\U0010ffff"
"""The greatest character: no name goes on with a greater one."""

SCHEDULE_COLUMNS = (
    "s.id, s.name, s.declaration::text AS declaration, s.state, s.paused_until, s.pause_reason, s.generation, "
    "s.next_tick_at, s.next_fire_at, s.failures, s.created_at, s.updated_at"
)
"""The columns of a schedule in the order of the fields, as those of runs are: a page has a thousand rows, and
to look each column up by its name takes longer than all else that is done with it."""
SCHEDULE_WIDTH = 12
RUN_COLUMNS = (
    "r.id AS run_id, s.name AS schedule_name, r.key, s.name || '/' || r.key AS correlation_id, r.kind, r.tick_at, "
    "r.ticks, r.due_at, r.state AS run_state, r.reason, r.attempt, r.fence, r.worker_id, w.name AS worker_name, "
    "r.started_at, r.deadline_at, r.ended_at, r.job ->> 'task' AS task, r.queue, CASE WHEN r.state NOT IN "
    "('buffered', 'waiting') THEN greatest(extract(epoch FROM r.started_at - r.due_at), 0)::float8 END AS lag_s"
)
"""The columns of a run, with its schedule and its worker joined to it."""
UNREADABLE = "(cannot be read)"
"""Shown in lists as the task of what this release cannot read. Nothing is told by it: see
`feedq.core.schedule.model.Schedule.unreadable`."""
DECLARED = "declared as paused"
"""The reason of a pause that the declaration asks for."""
UNFINISHED = "state IN ('buffered', 'waiting', 'running')"
"""As the index `run_unfinished` has it."""

# OFFSET 0: names are looked up row by row, and no table is read as a whole to be joined with a few.
_WORKER = "LEFT JOIN LATERAL (SELECT name FROM feedq.worker WHERE id = r.worker_id OFFSET 0) w ON true"
_VIEWS = f"""
    SELECT {SCHEDULE_COLUMNS}, {RUN_COLUMNS}, u.waiting, u.running
    FROM feedq.schedule s
    LEFT JOIN LATERAL (
        SELECT * FROM feedq.run WHERE schedule_id = s.id AND state NOT IN ('buffered', 'waiting')
        ORDER BY id DESC LIMIT 1
    ) r ON true
    {_WORKER}
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE state <> 'running')::int AS waiting,
            count(*) FILTER (WHERE state = 'running')::int AS running
        FROM feedq.run WHERE schedule_id = s.id AND {UNFINISHED}
    ) u
"""
_RUNS = f"""
    SELECT {RUN_COLUMNS}
    FROM feedq.run r
    CROSS JOIN LATERAL (SELECT name FROM feedq.schedule WHERE id = r.schedule_id OFFSET 0) s
    {_WORKER}
"""
_KNOWN = "feedq_1.knows(me.tasks, wanted.task)"
_TASKS = f"""
    WITH serving AS MATERIALIZED (
        SELECT w.name, w.labels, t.tasks FROM feedq.worker w LEFT JOIN feedq.task_set t ON t.id = w.task_set_id
        WHERE w.state = 'active' AND w.target_state = 'serving' AND w.job_slots > 0
    ), wanted AS MATERIALIZED (
        SELECT found.task, found.selector, min(found.name) AS schedule, count(*)::int AS schedules,
            {{names}} AS names
        FROM (
            SELECT s.name, coalesce(s.declaration ->> 'task', '') AS task,
                coalesce(s.declaration #> '{{{{selector,required}}}}', '{{{{}}}}'::jsonb) AS selector
            FROM feedq.schedule s WHERE s.removed_at IS NULL AND {{chosen}}
        ) found GROUP BY 1, 2
    )
    SELECT wanted.task, wanted.schedule, wanted.schedules, wanted.selector,
        (SELECT count(*)::int FROM serving) AS workers,
        (SELECT count(*)::int FROM serving me WHERE {_KNOWN} AND me.labels @> wanted.selector) AS able,
        EXISTS (SELECT FROM serving me WHERE {_KNOWN}) AS is_known, wanted.names
    FROM wanted ORDER BY wanted.task, wanted.selector
"""


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """A task that active schedules run, on workers with these labels."""

    task: str
    schedule: str
    """The first of them."""
    schedules: int
    selector: Mapping[str, str]
    workers: int
    """Workers that run jobs."""
    able: int
    """Those of them that know the task and have the labels."""
    is_known: bool
    """Whether one knows the task, whatever its labels."""
    names: Sequence[str] = ()
    """All of them, where they were asked for by name."""

    @property
    def why_unserved(self) -> str | None:
        """Why no worker can run it, though some run jobs."""
        if self.able or not self.workers:
            return None
        if not self.is_known:
            module = "(FEEDQ_IMPORTS names its module)"
            return f"no worker knows task {self.task}: its runs wait until one does {module}"
        labels = ", ".join(f"{key}={value}" for key, value in self.selector.items())
        return f"no worker that knows task {self.task} has the labels {labels}: its runs wait until one does"


class ScheduleListing(Aggregate):
    """Lists schedules and runs. Thread-safe."""

    @in_transaction
    def get(self, c: Connection, name: str) -> Schedule:
        """Raises `NotFound`."""
        sql = f"SELECT {SCHEDULE_COLUMNS} FROM feedq.schedule s WHERE name = %(name)s AND removed_at IS NULL"
        row = c.execute(sql, {"name": name}).one_or_none()
        if row is None:
            raise no_schedule(name)
        return schedule_from(row)

    @in_transaction
    def view(self, c: Connection, name: str) -> ScheduleView:
        """Raises `NotFound`."""
        sql = _VIEWS + " WHERE s.name = %(name)s AND s.removed_at IS NULL"
        row = c.execute(sql, {"name": name}).one_or_none()
        if row is None:
            raise no_schedule(name)
        schedule_from(row)  # whole or not at all: what is shown of one is its declaration
        return replace(view_from(row), unserved=_unserved(c, [name]).get(name))

    @in_transaction
    def latest(self, c: Connection, names: Collection[str], *, each: int) -> dict[str, list[Run]]:
        """The latest runs of each of these schedules, the newest first; those without any are left out."""
        sql = f"""
            SELECT {RUN_COLUMNS} FROM feedq.schedule s
            CROSS JOIN LATERAL (
                SELECT * FROM feedq.run WHERE schedule_id = s.id ORDER BY id DESC LIMIT %(each)s
            ) r
            {_WORKER} WHERE s.name = ANY(%(names)s) AND s.removed_at IS NULL ORDER BY s.name, r.id DESC
        """
        found: dict[str, list[Run]] = {}
        for row in c.execute(sql, {"names": list(names), "each": each}):
            run = run_from(row)
            found.setdefault(run.schedule, []).append(run)
        return found

    @in_transaction
    def views(
        self,
        c: Connection,
        *,
        prefix: str = "",
        after: str = "",
        state: ScheduleState | None = None,
        limit: int = PAGE_MAX,
    ) -> list[ScheduleView]:
        """A page of schedules by name: those whose name begins with ``prefix`` and comes after ``after``, in any
        ``state`` or in this. One that this release cannot read is among them, marked as `unreadable`."""
        # The page first: what is looked up for each of its rows must not be for any other.
        sql = f"""
            WITH page AS MATERIALIZED (
                SELECT * FROM feedq.schedule
                WHERE removed_at IS NULL AND name > %(after)s AND name >= %(prefix)s AND name < %(beyond)s
                    AND (CAST(%(state)s AS text) IS NULL OR state = %(state)s)
                ORDER BY name LIMIT %(limit)s
            )
            {_VIEWS.replace("FROM feedq.schedule s", "FROM page s")} ORDER BY s.name
        """
        parameters = {
            "prefix": prefix,
            "after": after,
            "beyond": prefix + LAST_OF_ALL,
            "state": state,
            "limit": min(max(limit, 0), PAGE_MAX),
        }
        return [view_from(row) for row in c.execute(sql, parameters)]

    @in_transaction
    def unserved(self, c: Connection, names: Collection[str]) -> Mapping[str, str]:
        """Return which of these schedules no worker can serve, because none knows the task or has the labels,
        each with a sentence that says so. None while no worker runs jobs. Nothing fails by it: runs wait for a
        worker."""
        return _unserved(c, names)

    def all(self, names: Sequence[str] | None = None) -> Iterator[Schedule]:
        """All declared schedules by name, or those of these names, read page by page."""
        after = ""
        while page := self.declared(names=names, after=after):
            yield from page
            after = page[-1].spec.name

    @in_transaction
    def declared(
        self, c: Connection, *, names: Sequence[str] | None = None, after: str = "", limit: int = PAGE_MAX
    ) -> list[Schedule]:
        """A page of the declared schedules by name, or of those of these names; without those behind beat entries.
        One that this release cannot read is marked as `unreadable`."""
        sql = f"""
            SELECT {SCHEDULE_COLUMNS} FROM feedq.schedule s
            WHERE removed_at IS NULL AND NOT starts_with(s.name, '{BEAT_PREFIX}') AND s.name > %(after)s
              AND (CAST(%(names)s AS text[]) IS NULL OR s.name = ANY(%(names)s))
            ORDER BY s.name LIMIT %(limit)s
        """
        given = {"names": None if names is None else list(names), "after": after, "limit": limit}
        return [shown_schedule_from(row) for row in c.execute(sql, given)]

    @in_transaction
    def runs(
        self,
        c: Connection,
        name: str | None = None,
        *,
        states: Collection[RunState] = (),
        before: int | None = None,
        limit: int = 50,
    ) -> list[Run]:
        """Newest first; ``before`` is the id of the run behind which a page begins."""
        parameters = {
            "schedule_id": None if name is None else _known(c, name),
            "states": [state.value for state in states] or None,
            "before": before,
            "limit": min(max(limit, 0), PAGE_MAX),
        }
        # The few that are shown first: only for these names are looked up.
        found = """(
            SELECT * FROM feedq.run r
            WHERE (%(before)s IS NULL OR r.id < %(before)s)
                AND (%(schedule_id)s IS NULL OR r.schedule_id = %(schedule_id)s)
                AND (%(states)s IS NULL OR r.state = ANY(%(states)s))
            ORDER BY r.id DESC LIMIT %(limit)s
        )"""
        sql = _RUNS.replace("FROM feedq.run r", f"FROM {found} r") + " ORDER BY r.id DESC"
        return [run_from(row) for row in c.execute(sql, parameters)]

    @in_transaction
    def run(self, c: Connection, run_id: int) -> Run:
        """Raises `NotFound`."""
        return run_of(c, run_id)

    @in_transaction
    def counts(self, c: Connection, name: str) -> Mapping[RunState, int]:
        """Ticks and triggers by state, those within retention; a row that stands for many counts as many."""
        sql = "SELECT state, sum(ticks)::bigint AS ticks FROM feedq.run WHERE schedule_id = %(id)s GROUP BY state"
        return {RunState(row.state): row.ticks for row in c.execute(sql, {"id": _known(c, name)})}


def run_of(c: Connection, run_id: int) -> Run:
    """Raises `NotFound`."""
    row = c.execute(_RUNS + " WHERE r.id = %(id)s", {"id": run_id}).one_or_none()
    if row is None:
        raise no_run(run_id)
    return run_from(row)


def _unserved(c: Connection, names: Collection[str]) -> dict[str, str]:
    found = ((task, task.why_unserved) for task in scheduled_tasks(c, names))
    return {name: why for task, why in found if why is not None for name in task.names}


def scheduled_tasks(c: Connection, names: Collection[str] | None = None) -> list[ScheduledTask]:
    """Lists the tasks of these schedules, or of all active ones, each with each selector once."""
    # Of all there may be a hundred thousand to a task: one name is enough.
    of_all = {"chosen": "s.state = 'active'", "names": "'{}'::text[]"}
    of_some = {"chosen": "s.name = ANY(%(names)s)", "names": "array_agg(found.name)"}
    sql = _TASKS.format(**(of_all if names is None else of_some))
    return [ScheduledTask(*row) for row in c.execute(sql, {"names": list(names or ())})]


def _known(c: Connection, name: str) -> int:
    """The declared schedule of that name, or the one of that name that was removed last. Raises `NotFound`."""
    for condition in ("removed_at IS NULL", "removed_at IS NOT NULL"):
        sql = f"""
            SELECT id FROM feedq.schedule WHERE name = %(name)s AND {condition}
            ORDER BY removed_at DESC LIMIT 1
        """
        found: int | None = c.execute(sql, {"name": name}).scalar_one_or_none()
        if found is not None:
            return found
    raise no_schedule(name)


# -- rows ----------------------------------------------------------------------------------------------


def schedule_from(row: Any) -> Schedule:
    """Reads a row that begins with `SCHEDULE_COLUMNS`. Raises `Unreadable`."""
    schedule_id, name, declaration, state, *rest = row[:SCHEDULE_WIDTH]
    try:
        spec = ScheduleSpec.from_json(declaration)
    except InvalidInput as error:
        raise Unreadable(
            f"schedule {name!r} is stored in a way that this release of feedq cannot read ({error}); upgrade "
            "feedq, or declare all of it again with `feedq apply`"
        ) from error
    return Schedule(schedule_id, spec, ScheduleState(state), *rest)


def shown_schedule_from(row: Any) -> Schedule:
    """Reads such a row to be looked at, whatever is stored: of one that is `unreadable` as much as is sure."""
    try:
        return schedule_from(row)
    except Unreadable as error:
        schedule_id, name, _, state, until, reason, *rest = row[:SCHEDULE_WIDTH]
        spec = ScheduleSpec.of({"name": name, "task": UNREADABLE, "paused": reason == DECLARED or None})
        shown = Schedule(schedule_id, spec, ScheduleState(state), until, reason, *rest)
        return replace(shown, unreadable=str(error))


def run_from(row: Any) -> Run:
    """Reads `RUN_COLUMNS`."""
    run_id, name, key, correlation_id, kind, tick_at, ticks, due_at, state, reason, *rest = row
    head = (run_id, name, key, correlation_id, RunKind(kind), tick_at, ticks, due_at, RunState(state))
    return Run(*head, None if reason is None else mask_url(reason), *rest)


def view_from(row: Any) -> ScheduleView:
    """Reads `SCHEDULE_COLUMNS`, `RUN_COLUMNS`, all null where there is no run, ``waiting`` and ``running``."""
    *columns, waiting, running = row
    run = columns[SCHEDULE_WIDTH:]
    last = None if run[0] is None else run_from(run)
    return ScheduleView(shown_schedule_from(columns), last, waiting, running)


def no_schedule(name: str) -> NotFound:
    return NotFound(f"no schedule named {name!r}; `feedq schedule list` shows them all")


def no_run(run_id: int) -> NotFound:
    return NotFound(f"no run {run_id}: it never existed, or its schedule's history has been trimmed since")
