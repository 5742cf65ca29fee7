"""The outbox of alerts: what is to be told, in order, and to whom it was told so far.

Alerts come in with the verdicts (`feedq.control.store.expectations`), in the same transaction. Each target has a
mark up to which it was told, so that one that is away holds up no other; the mark moves after a message was
taken. A beat that dies in between tells it once more: at least once, each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, text

from feedq.control.store.database import Aggregate, in_transaction
from feedq.core.expectations import unmet_said
from feedq.core.values import storable

AT_ONCE: Final = 1_000
"""Alerts that one message speaks of."""
FAILURES_DOUBLE: Final = 6
"""So often the pause after a failure doubles."""
ERROR_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Alert:
    """A feed that is not as expected from now on, or is so again."""

    id: int
    at: datetime
    feed: str
    tenant: str
    kind: str
    begins: bool
    since: datetime
    said: str


class AlertOutbox(Aggregate):
    """What is to be told."""

    @in_transaction
    def due(
        self, c: Connection, target: str, *, tenant: str | None, pause_s: float, retry_s: float
    ) -> list[Alert]:
        """What this target has not been told, in order; nothing within the pause after the last message, or after
        a failure. ``tenant``: the only one that it hears of. A target that is new begins with what comes next."""
        new = """
            INSERT INTO feedq.alert_target (target, sent_to)
            SELECT :target, coalesce(max(id), 0) FROM feedq.alert ON CONFLICT DO NOTHING
        """
        sql = f"""
            SELECT a.id, a.at, a.feed, a.tenant, a.kind, a.begins, a.since, a.bound, a.found, a.why
            FROM feedq.alert_target t JOIN feedq.alert a ON a.id > t.sent_to
            WHERE t.target = :target AND (CAST(:tenant AS text) IS NULL OR a.tenant = :tenant)
              AND (t.sent_at IS NULL OR clock_timestamp() >= t.sent_at + make_interval(secs => CASE
                WHEN t.failures = 0 THEN :pause_s
                ELSE :retry_s * 2 ^ least(t.failures - 1, {FAILURES_DOUBLE}) END))
            ORDER BY a.id LIMIT {AT_ONCE}
        """
        c.execute(text(new), {"target": target})
        given = {"target": target, "tenant": tenant, "pause_s": pause_s, "retry_s": retry_s}
        return [
            Alert(
                *(row.id, row.at, row.feed, row.tenant, row.kind, row.begins, row.since),
                said=unmet_said(row.kind, row.bound, row.found, row.why),
            )
            for row in c.execute(text(sql), given)
        ]

    @in_transaction
    def told(self, c: Connection, target: str, up_to: int) -> None:
        """The target has taken everything up to this alert."""
        sql = """
            UPDATE feedq.alert_target SET sent_to = greatest(sent_to, :up_to), sent_at = clock_timestamp(),
                failures = 0, error = NULL
            WHERE target = :target
        """
        c.execute(text(sql), {"target": target, "up_to": up_to})

    @in_transaction
    def failed(self, c: Connection, target: str, error: str) -> None:
        """The target has not taken a message, which is to be told again later."""
        sql = """
            UPDATE feedq.alert_target SET sent_at = clock_timestamp(), failures = failures + 1, error = :error
            WHERE target = :target
        """
        c.execute(text(sql), {"target": target, "error": storable(error, ERROR_CHARS_MAX)})
