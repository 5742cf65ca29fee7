"""Judges what is expected of feeds, in the database and with its clock alone.

One transaction a look: samples of the counters are taken, each feed is judged by its lease, and what has begun or
ended not to be as expected is written down, in `feedq.unmet`, in history, and as an alert to be sent. The owner of
a feed is not asked. What it has not reported has not happened: a worker that is frozen, a loop that is stuck and a
fleet without workers look like a source that sends nothing.

A verdict is yes, no, or unknown, as for rows within an hour when a feed has begun a minute ago: unknown changes
nothing. Of a feed that is paused or removed nothing is expected.

What is near its bound is not told over and over: a silence ends with a record that came after it was one, not with
a report that dates the last record a little later; what is refused, and a lag, is as expected again below half the
bound; rows are so a fifth above theirs. Rows that are just enough, and a lag just within its bound, take twice the
time: that which rows are counted over grows and shrinks by a sample, and the records in it with the source.

Alerts come in with the verdicts, in the same transaction. Each target has a mark up to which it was told, so that
one that is away holds up no other; the mark moves after a message was taken. A beat that dies in between tells it
once more: at least once, each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from feedq.control.store.database import Aggregate, Connection, in_statement, in_transaction
from feedq.core.expectations import Expectations, unmet_said
from feedq.core.values import storable
from feedq.telemetry.event_names import EventKind

JUDGE_LOCK: Final = 0x66656564_71_06
"""Advisory lock of whoever judges: an old leader may still be at it."""
SAMPLES: Final = 6
"""Samples of the counters within the time that they are compared over: how exactly its beginning is met."""
REFUSED_OVER_S: Final = 30.0
"""Refused records are counted over this."""
ROWS_AGAIN: Final = 1.2
"""So many times the rows are as expected again: more than what a sample adds to the time they are counted over."""
PATIENCE: Final = 2
"""Or just enough rows, once they have been too few for so many times the time: a source may land no more. A lag
that is just within its bound ends so, too."""
AGAIN: Final = 0.5
"""The part of the bound that is as expected again, of what is refused and of a lag."""
REFUSED_LEAST: Final = 100
"""Or as soon as there are so many records: of ten, one that is refused says little."""
ALERTS_KEPT_DAYS: Final = 7
"""An alert that could not be sent for so long is no news any more."""

_WANTED = f"""
    wanted AS MATERIALIZED (
        SELECT f.id, f.name, f.tenant, f.updated_at, e.expect,
            l.records_total, l.dead_letters_total, greatest(l.last_record_at, f.updated_at) AS heard_at,
            (e.expect -> 'min_rows' ->> 'per')::float8 AS per_s,
            (e.expect -> 'min_rows' ->> 'rows')::float8 AS least_rows,
            (e.expect ->> 'max_silence')::float8 AS silence_s,
            (e.expect -> 'max_event_lag' ->> 'seconds')::float8 AS lag_s,
            extract(epoch FROM feedq.now() - greatest(l.event_at, f.updated_at))::float8 AS lagging_s,
            l.event_at, l.event_fault,
            (e.expect ->> 'max_refused')::float8 AS refused
        FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id CROSS JOIN LATERAL (
            SELECT CAST(%(everything)s AS jsonb) || coalesce(CAST(%(tenants)s AS jsonb) -> f.tenant, '{{}}')
                || f.expect AS expect
        ) e
        WHERE f.removed_at IS NULL AND f.target_state = 'running' AND f.parent IS NULL
          AND (%(for_all)s OR f.tenant = ANY(%(tenant_names)s) OR f.expect <> '{{}}')
    ), counted AS MATERIALIZED (
        SELECT id, 'min_rows' AS kind, per_s FROM wanted WHERE per_s IS NOT NULL
        UNION ALL
        SELECT id, 'max_refused', {REFUSED_OVER_S} FROM wanted WHERE refused IS NOT NULL
    )
"""
_SAMPLE = f"""
    WITH {_WANTED}
    INSERT INTO feedq.landed_sample (feed_id, kind, at, records, dead_letters)
    SELECT c.id, c.kind, feedq.now(), w.records_total, w.dead_letters_total
    FROM counted c JOIN wanted w USING (id)
    WHERE NOT EXISTS (
        SELECT FROM feedq.landed_sample s WHERE s.feed_id = c.id AND s.kind = c.kind
          AND s.at > feedq.now() - make_interval(secs => c.per_s / {SAMPLES}))
    ON CONFLICT DO NOTHING
"""
_FORGET = f"""
    WITH {_WANTED}
    DELETE FROM feedq.landed_sample s
    WHERE NOT EXISTS (
        SELECT FROM counted c WHERE c.id = s.feed_id AND c.kind = s.kind
          AND s.at > feedq.now() - make_interval(secs => c.per_s * {1 + 2 / SAMPLES}))
"""
_JUDGE = f"""
    WITH {_WANTED}, verdicts AS MATERIALIZED (
        SELECT id, 'max_silence' AS kind, expect -> 'max_silence' AS bound,
            extract(epoch FROM feedq.now() - heard_at)::float8 AS found, heard_at AS since,
            feedq.now() - heard_at > make_interval(secs => silence_s) AS unmet,
            heard_at - make_interval(secs => silence_s) AS ends_after, NULL AS why
        FROM wanted WHERE silence_s IS NOT NULL
        UNION ALL
        SELECT id, 'max_event_lag', expect -> 'max_event_lag', lagging_s, feedq.now(), lagging_s > lag_s,
            CASE WHEN lagging_s <= {AGAIN} * lag_s THEN 'infinity'::timestamptz
                ELSE feedq.now() - make_interval(secs => {PATIENCE} * lag_s) END,
            coalesce(event_fault, CASE WHEN event_at IS NULL THEN 'no record with a time has landed' END)
        FROM wanted WHERE lag_s IS NOT NULL
        UNION ALL
        SELECT w.id, 'min_rows', w.expect -> 'min_rows', (w.records_total - s.records)::float8,
            feedq.now(), w.records_total - s.records < w.least_rows,
            CASE WHEN w.records_total - s.records >= {ROWS_AGAIN} * w.least_rows THEN 'infinity'::timestamptz
                ELSE feedq.now() - make_interval(secs => {PATIENCE} * w.per_s) END, NULL
        FROM wanted w CROSS JOIN LATERAL (
            SELECT records FROM feedq.landed_sample
            WHERE feed_id = w.id AND kind = 'min_rows' AND at >= w.updated_at
              AND at <= feedq.now() - make_interval(secs => w.per_s)
            ORDER BY at DESC LIMIT 1
        ) s WHERE w.per_s IS NOT NULL
        UNION ALL
        SELECT w.id, 'max_refused', w.expect -> 'max_refused', n.dead / greatest(n.records + n.dead, 1),
            feedq.now(), n.dead > w.refused * (n.records + n.dead),
            CASE WHEN n.dead <= {AGAIN} * w.refused * (n.records + n.dead) THEN 'infinity'::timestamptz
                ELSE '-infinity' END, NULL
        FROM wanted w CROSS JOIN LATERAL (
            SELECT at, (w.records_total - records)::float8 AS records,
                (w.dead_letters_total - dead_letters)::float8 AS dead
            FROM feedq.landed_sample
            WHERE feed_id = w.id AND kind = 'max_refused'
              AND at >= feedq.now() - make_interval(secs => {REFUSED_OVER_S * (1 + 1 / SAMPLES)})
            ORDER BY at LIMIT 1
        ) n
        WHERE w.refused IS NOT NULL AND (n.records + n.dead >= {REFUSED_LEAST}
            OR n.at <= feedq.now() - make_interval(secs => {REFUSED_OVER_S}))
    ), begun AS (
        INSERT INTO feedq.unmet (feed_id, kind, since, bound, found, why)
        SELECT id, kind, since, bound, found, why FROM verdicts WHERE unmet ORDER BY id, kind
        ON CONFLICT (feed_id, kind) DO NOTHING RETURNING *
    ), ended AS (
        DELETE FROM feedq.unmet u USING feedq.feed f
        WHERE f.id = u.feed_id AND (
            EXISTS (
                SELECT FROM verdicts v WHERE v.id = u.feed_id AND v.kind = u.kind AND NOT v.unmet
                  AND (u.since < v.ends_after OR u.bound <> v.bound))
            OR NOT EXISTS (
                SELECT FROM wanted w WHERE w.id = u.feed_id AND jsonb_typeof(w.expect -> u.kind) <> 'null'))
        RETURNING u.*
    ), changed AS (
        SELECT *, true AS begins FROM begun UNION ALL SELECT *, false FROM ended
    ), history AS (
        INSERT INTO feedq.event (kind, feed_id, detail)
        SELECT CASE WHEN begins THEN %(unmet)s ELSE %(met)s END, feed_id,
            jsonb_strip_nulls(jsonb_build_object(
                'kind', kind, 'bound', bound, 'found', found, 'since', since, 'why', why))
        FROM changed ORDER BY feed_id
    )
    INSERT INTO feedq.alert (feed, tenant, kind, begins, since, bound, found, why)
    SELECT f.name, f.tenant, c.kind, c.begins, c.since, c.bound, c.found, c.why
    FROM changed c JOIN feedq.feed f ON f.id = c.feed_id ORDER BY f.name, c.kind
    RETURNING begins
"""
_TRIM = f"DELETE FROM feedq.alert WHERE at < feedq.now() - interval '{ALERTS_KEPT_DAYS} days'"


@dataclass(frozen=True, slots=True)
class Judged:
    """What a look has found: expectations that are newly unmet, and those that are met again."""

    begun: int = 0
    ended: int = 0


class ExpectationStore(Aggregate):
    """What is expected of feeds, and whether it is so."""

    @in_statement
    def unmet(self, c: Connection) -> dict[str, int]:
        """Feeds that are not as expected, counted by what is unmet."""
        rows = c.execute("SELECT kind, count(*) AS feeds FROM feedq.unmet GROUP BY kind")
        return {row.kind: row.feeds for row in rows}

    @in_transaction
    def judge(self, c: Connection, everything: Expectations, tenants: Mapping[str, Expectations]) -> Judged:
        """Judge all feeds. Nothing happens while another beat is at it."""
        free = c.execute("SELECT pg_try_advisory_xact_lock(%(key)s)", {"key": JUDGE_LOCK}).scalar_one()
        if not free:
            return Judged()
        given: dict[str, Any] = {
            "everything": msgspec.json.encode(dict(everything)).decode(),
            "tenants": msgspec.json.encode({name: dict(one) for name, one in tenants.items()}).decode(),
            "tenant_names": list(tenants),
            "for_all": bool(everything),
        }
        c.execute(_SAMPLE, given)
        kinds = {"unmet": EventKind.EXPECTATION_UNMET.value, "met": EventKind.EXPECTATION_MET.value}
        found = c.execute(_JUDGE, {**given, **kinds})
        c.execute(_FORGET, given)
        c.execute(_TRIM)
        begun = sum(row.begins for row in found)
        return Judged(begun, len(found) - begun)


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
            SELECT %(target)s, coalesce(max(id), 0) FROM feedq.alert ON CONFLICT DO NOTHING
        """
        sql = f"""
            SELECT a.id, a.at, a.feed, a.tenant, a.kind, a.begins, a.since, a.bound, a.found, a.why
            FROM feedq.alert_target t JOIN feedq.alert a ON a.id > t.sent_to
            WHERE t.target = %(target)s AND (CAST(%(tenant)s AS text) IS NULL OR a.tenant = %(tenant)s)
              AND (t.sent_at IS NULL OR feedq.clock() >= t.sent_at + make_interval(secs => CASE
                WHEN t.failures = 0 THEN %(pause_s)s
                ELSE %(retry_s)s * 2 ^ least(t.failures - 1, {FAILURES_DOUBLE}) END))
            ORDER BY a.id LIMIT {AT_ONCE}
        """
        c.execute(new, {"target": target})
        given = {"target": target, "tenant": tenant, "pause_s": pause_s, "retry_s": retry_s}
        return [
            Alert(
                *(row.id, row.at, row.feed, row.tenant, row.kind, row.begins, row.since),
                said=unmet_said(row.kind, row.bound, row.found, row.why),
            )
            for row in c.execute(sql, given)
        ]

    @in_transaction
    def told(self, c: Connection, target: str, up_to: int) -> None:
        """The target has taken everything up to this alert."""
        sql = """
            UPDATE feedq.alert_target SET sent_to = greatest(sent_to, %(up_to)s), sent_at = feedq.clock(),
                failures = 0, error = NULL
            WHERE target = %(target)s
        """
        c.execute(sql, {"target": target, "up_to": up_to})

    @in_transaction
    def failed(self, c: Connection, target: str, error: str) -> None:
        """The target has not taken a message, which is to be told again later."""
        sql = """
            UPDATE feedq.alert_target SET sent_at = feedq.clock(), failures = failures + 1, error = %(error)s
            WHERE target = %(target)s
        """
        c.execute(sql, {"target": target, "error": storable(error, ERROR_CHARS_MAX)})
