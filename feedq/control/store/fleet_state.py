"""The state of the fleet as a whole: when reconcile last ran, which beat leads, how many runs wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

FLEET_STATE = """
    SELECT CAST(json_build_object(
        'now', feedq.clock(), 'pass_at', t.pass_at,
        'pass_age_s', extract(epoch FROM feedq.clock() - t.pass_at)::float8,
        'leader', CASE WHEN l.name IS NOT NULL THEN json_build_object(
            'host', l.host, 'pid', l.pid, 'elected_at', l.elected_at, 'expires_at', l.expires_at,
            'leads', l.expires_at >= feedq.clock()) END) AS text)
    FROM feedq.fleet t LEFT JOIN feedq.leader l ON l.name = 'beat'
"""

JOB_STATE = """
    SELECT CAST(row_to_json(found) AS text) FROM (SELECT schedules.*, runs.*, workers.* FROM (
        SELECT count(*) FILTER (WHERE state = 'active')::int AS active,
            count(*) FILTER (WHERE state = 'paused')::int AS paused,
            -- A later release may store other values in a declaration: they are no numbers then.
            coalesce(array_agg(name ORDER BY name) FILTER (WHERE state = 'paused' AND failures >=
                CASE WHEN jsonb_typeof(declaration -> 'pause_on_failure') = 'number'
                     THEN (declaration ->> 'pause_on_failure')::numeric END), '{}') AS tripped,
            count(*) FILTER (WHERE state = 'active' AND failures > 0)::int AS failing,
            coalesce((array_agg(name ORDER BY name) FILTER (WHERE state = 'active' AND failures > 0))[1:5], '{}')
                AS failing_names,
            extract(epoch FROM feedq.clock() - min(next_fire_at) FILTER (
                WHERE state = 'active' AND next_fire_at <= feedq.clock()))::float8 AS overdue_s
        FROM feedq.schedule WHERE removed_at IS NULL
    ) schedules, (
        SELECT count(*) FILTER (WHERE state = 'running')::int AS running,
            count(*) FILTER (WHERE state <> 'running')::int AS waiting,
            count(*) FILTER (WHERE state = 'waiting' AND due_at <= feedq.clock())::int AS due,
            extract(epoch FROM feedq.clock() - min(due_at) FILTER (
                WHERE state = 'waiting' AND due_at <= feedq.clock()))::float8 AS oldest_due_s
        FROM feedq.run WHERE state IN ('buffered', 'waiting', 'running')
    ) runs, (
        SELECT count(*)::int AS workers, coalesce(sum(job_slots), 0)::int AS slots FROM feedq.worker
        WHERE state = 'active' AND target_state = 'serving' AND job_slots > 0
    ) workers) found
"""


@dataclass(frozen=True, slots=True)
class Leader:
    """The beat that was elected last."""

    host: str
    pid: int
    elected_at: datetime
    expires_at: datetime
    leads: bool
    """False once its time is up and nobody else has been elected."""


@dataclass(frozen=True, slots=True)
class FleetState:
    """The fleet on the database's clock."""

    now: datetime
    pass_at: datetime | None
    """When a reconcile pass last finished."""
    pass_age_s: float | None
    leader: Leader | None


@dataclass(frozen=True, slots=True)
class JobState:
    """Schedules and runs in numbers, on the database's clock."""

    active: int
    paused: int
    tripped: tuple[str, ...]
    """Names of schedules that so many failures in a row have paused."""
    overdue_s: float | None
    """How long ago the first tick fell due that nobody has fired; None when there is none."""
    running: int
    waiting: int
    due: int
    """The runs, of those that wait, that may start now: the others are retries that wait for their time."""
    oldest_due_s: float | None
    """How long the first of them has been due."""
    workers: int
    """Workers that run jobs."""
    slots: int
    """Runs that they can run at a time."""
    failing: int = 0
    """Active schedules whose last run did not succeed, in all its attempts."""
    failing_names: tuple[str, ...] = ()
    """The first few of them."""

    @property
    def schedules(self) -> int:
        return self.active + self.paused

    @property
    def are_used(self) -> bool:
        """Whether there is any schedule or run."""
        return bool(self.schedules or self.waiting or self.running)
