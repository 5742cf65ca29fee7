"""What can be read about the fleet as a whole: when reconcile last ran, and which beat leads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from feedq.store.engine import connect_once

_STATE = """
    SELECT clock_timestamp() AS now, t.pass_at, t.alive_since,
        extract(epoch FROM clock_timestamp() - t.pass_at)::float8 AS pass_age_s,
        l.host, l.pid, l.elected_at, l.expires_at, l.expires_at >= clock_timestamp() AS leads
    FROM feedq.fleet t LEFT JOIN feedq.leader l ON l.name = 'beat'
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


def fleet_state(url: str) -> FleetState:
    """Raises `Unavailable`."""
    with connect_once(url) as c:
        row = c.execute(text(_STATE)).one()
    leader = (
        None
        if row.pid is None
        else Leader(row.host, row.pid, row.elected_at, row.expires_at, leads=row.leads)
    )
    return FleetState(row.now, row.pass_at, row.pass_age_s, leader)
