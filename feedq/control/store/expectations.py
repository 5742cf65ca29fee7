"""Judges what is expected of feeds, in the database and with its clock alone.

One transaction a look: samples of the counters are taken, each feed is judged by its lease, and what has begun or
ended not to be as expected is written down, in `feedq.unmet`, in history, and as an alert to be sent. The owner of
a feed is not asked. What it has not reported has not happened: a worker that is frozen, a loop that is stuck and a
fleet without workers look like a source that sends nothing.

A verdict is yes, no, or unknown, as for rows within an hour when a feed has begun a minute ago: unknown changes
nothing. Of a feed that is paused or removed nothing is expected.

When a verdict changes stands in `feedq/control/sql/expectations.sql`.

Alerts come in with the verdicts, in the same transaction. Each target has a mark up to which it was told, so that
one that is away holds up no other; the mark moves after a message was taken. A beat that dies in between tells it
once more: at least once, each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from feedq.control.store.database import Aggregate, Connection, in_statement
from feedq.control.store.protocol import call
from feedq.core.expectations import Expectations, unmet_said
from feedq.core.values import storable

ERROR_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Judged:
    """What a look has found: expectations that are newly unmet, and those that are met again."""

    begun: int = 0
    ended: int = 0


class ExpectationStore(Aggregate):
    """Expectations of feeds, and whether they are met."""

    @in_statement
    def unmet(self, c: Connection) -> dict[str, int]:
        """Feeds that are not as expected, counted by what is unmet."""
        rows = c.execute("SELECT kind, count(*) AS feeds FROM feedq.unmet GROUP BY kind")
        return {row.kind: row.feeds for row in rows}

    @in_statement
    def judge(self, c: Connection, everything: Expectations, tenants: Mapping[str, Expectations]) -> Judged:
        """Judge all feeds. Nothing happens while another beat is at it."""
        of_all = msgspec.json.encode(dict(everything)).decode()
        of_tenants = msgspec.json.encode({name: dict(one) for name, one in tenants.items()}).decode()
        return call(c, "judge", Judged, everything=of_all, tenants=of_tenants)


@dataclass(frozen=True, slots=True)
class Alert:
    """A feed that begins to fail an expectation, or meets it again."""

    id: int
    at: datetime
    feed: str
    tenant: str
    kind: str
    begins: bool
    since: datetime
    said: str


class AlertOutbox(Aggregate):
    """The alerts to send."""

    @in_statement
    def due(
        self, c: Connection, target: str, *, tenant: str | None, pause_s: float, retry_s: float
    ) -> list[Alert]:
        """What this target has not been told, in order; nothing within the pause after the last message, or after
        a failure. ``tenant``: the only one that it hears of. A target that is new begins with what comes next."""
        sql = "SELECT * FROM feedq_1.due_alerts(%(target)s, %(tenant)s, %(pause_s)s, %(retry_s)s)"
        given = {"target": target, "tenant": tenant, "pause_s": pause_s, "retry_s": retry_s}
        return [
            Alert(
                *(row.id, row.at, row.feed, row.tenant, row.kind, row.begins, row.since),
                said=unmet_said(row.kind, row.bound, row.found, row.why),
            )
            for row in c.execute(sql, given)
        ]

    @in_statement
    def told(self, c: Connection, target: str, up_to: int) -> None:
        """The target has taken everything up to this alert."""
        call(c, "told_alerts", bool, of_target=target, up_to=up_to, why=None)

    @in_statement
    def failed(self, c: Connection, target: str, error: str) -> None:
        """The target has not taken a message, which is to be told again later."""
        call(c, "told_alerts", bool, of_target=target, up_to=None, why=storable(error, ERROR_CHARS_MAX))
