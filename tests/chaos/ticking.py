"""Schedules that tick every second, and what must hold of their runs and effects whatever happened to the workers.

`accounts` asks the tables only: the rows of runs, the watermarks, and the effects that jobs wrote down. It names
everything that is wrong, so that a mutant can be told from a bad day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from feedq.control.store.jobs.schedules import ScheduleStore
from feedq.core.schedule.spec import CatchUp, Overlap, ScheduleSpec, Semantics
from feedq.core.schedule.ticks import EPOCH
from tests.cluster import Cluster, wait_until
from tests.schedules import schedule_spec

PERIOD_S = 1.0
MOMENTS = 4
"""They do not all tick at the same moment, so that more workers fire them."""
QUIET_S = 60.0
NOT_RUN = ("skipped_overlap", "missed_deadline", "missed_catchup", "cancelled", "lost")
"""Why a tick of an at-least-once schedule may be without an effect. A cancelled or lost one may have one."""
OVERLAPS = (
    *(Overlap.ALLOW_ALL,) * 4,
    *(Overlap.SKIP,) * 2,
    Overlap.BUFFER_ONE,
    *(Overlap.BUFFER_ALL,) * 2,
    Overlap.CANCEL_OTHER,
)
TASKS = {
    Semantics.AT_MOST_ONCE: "effects.noted",
    Semantics.AT_LEAST_ONCE: "effects.noted",
    Semantics.TRANSACTIONAL: "effects.transferred",
}
RETRIES = {
    # Of a job that failed nobody knows whether it had its effect.
    Semantics.AT_MOST_ONCE: {},
    Semantics.AT_LEAST_ONCE: {"limit": 100, "first": 0.2, "factor": 1.0},
    Semantics.TRANSACTIONAL: {"limit": 100, "first": 0.2, "factor": 1.0},
}


class Violated(AssertionError):
    """Something of the promise does not hold."""

    def __init__(self, wrong: Mapping[str, Sequence[object]]) -> None:
        self.wrong = {what: len(cases) for what, cases in wrong.items() if cases}
        examples = [f"{what} ({len(cases)}): {list(cases[:3])}" for what, cases in wrong.items() if cases]
        super().__init__("; ".join(examples))


@dataclass(frozen=True, slots=True)
class Account:
    """What a look at the tables found, and that nothing was wrong with it."""

    ticks: int
    states: Mapping[str, int]
    """Ticks by the state they ended in."""
    attempts: int
    effects: int

    def __str__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        return f"{self.ticks} ticks ({states}), {self.attempts} attempts, {self.effects} effects"


def ticking(
    *, each: int = 10, most_s: float = 0.3, overlaps: Sequence[Overlap] = OVERLAPS, **policies: Any
) -> list[ScheduleSpec]:
    """So many schedules of each semantics that tick every second."""
    policies = {"catch_up": {"policy": CatchUp.ALL}, **policies}
    return [
        schedule_spec(
            f"{semantics}/{n}",
            every=PERIOD_S,
            anchor=EPOCH + n % MOMENTS * timedelta(seconds=PERIOD_S / MOMENTS),
            task=task,
            args=[most_s],
            semantics=semantics,
            timeout=20.0,
            retries=RETRIES[semantics],
            overlap=overlaps[n % len(overlaps)],
            **policies,
        )
        for semantics, task in TASKS.items()
        for n in range(each)
    ]


def begin(schedules: ScheduleStore, specs: Collection[ScheduleSpec]) -> dict[str, datetime]:
    """Declare them. Returns the first tick of each."""
    first = {}
    for spec in specs:
        tick = schedules.add(spec).next_tick_at
        assert tick is not None
        first[spec.name] = tick
    return first


def end(cluster: Cluster, schedules: ScheduleStore, first: Mapping[str, datetime]) -> None:
    """Let everything be fired that is due by now, then no more, and wait until nothing runs or waits any more."""
    end_while(lambda: None, cluster, schedules, first)


def end_while(
    tend: Callable[[], None], cluster: Cluster, schedules: ScheduleStore, first: Mapping[str, datetime]
) -> None:
    """The same, and look after the workers meanwhile."""

    (now,) = (row["now"] for row in cluster.sql("SELECT clock_timestamp() AS now"))

    def unfired(cluster: Cluster) -> list[dict[str, Any]]:
        sql = "SELECT name, next_fire_at FROM feedq.schedule WHERE state = 'active' AND next_fire_at <= %s"
        return cluster.sql(sql, (now,))

    def is_none(found: Callable[[Cluster], list[dict[str, Any]]]) -> bool:
        tend()
        return not found(cluster)

    wait_until(
        lambda: is_none(unfired),
        lambda: f"everything due at {now} was fired: {unfired(cluster)[:5]}",
        limit_s=QUIET_S,
        interval_s=0.1,
    )
    for name in first:
        schedules.pause(name)
    wait_until(
        lambda: is_none(unfinished),
        lambda: f"every run has ended: {unfinished(cluster)[:5]}",
        limit_s=QUIET_S,
        interval_s=0.1,
    )


def unfinished(cluster: Cluster) -> list[dict[str, Any]]:
    return cluster.sql(
        "SELECT s.name, r.key, r.state, r.attempt, r.reason, w.state AS worker FROM feedq.run r "
        "JOIN feedq.schedule s ON s.id = r.schedule_id LEFT JOIN feedq.worker w ON w.id = r.worker_id "
        "WHERE r.ended_at IS NULL"
    )


def wrongly_ended(cluster: Cluster, *, killed: Collection[int] = ()) -> list[dict[str, Any]]:
    """Runs that have failed or timed out, which no job does by itself; and those that are lost although they may
    be tried again, or although their worker is not one of those ``killed``, given by their process ids."""
    return cluster.sql(
        """
        SELECT s.name, r.key, r.state, r.reason, w.pid FROM feedq.run r
        JOIN feedq.schedule s ON s.id = r.schedule_id LEFT JOIN feedq.worker w ON w.id = r.worker_id
        WHERE r.state IN ('failed', 'timed_out') OR r.state = 'lost' AND (
            coalesce(r.job ->> 'semantics', 'at_most_once') <> 'at_most_once' OR NOT w.pid = ANY(%s))
        """,
        (list(killed),),
    )


# -- the account -------------------------------------------------------------------------------------


def account(cluster: Cluster, first: Mapping[str, datetime]) -> Account:
    """Raises `Violated` unless every tick and every effect is as it was promised."""
    runs = _runs(cluster)
    wrong = {
        **_wrong_ticks(cluster, first),
        "runs that have not ended": [str(row) for row in unfinished(cluster)],
        **_wrong_effects(runs),
        "running at the same time": _concurrent(cluster),
    }
    if any(wrong.values()):
        raise Violated(wrong)
    states: Counter[str] = Counter()
    for row in runs:
        states[row["state"]] += row["ticks"]
    return Account(
        sum(states.values()), states, sum(row["attempt"] for row in runs), sum(row["effects"] for row in runs)
    )


def _runs(cluster: Cluster) -> list[dict[str, Any]]:
    """Every run with the number of its effects; and effects that belong to no run."""
    return cluster.sql(
        """
        SELECT coalesce(r.name, e.schedule) AS name, coalesce(r.key, e.key) AS key, r.state, r.ticks, r.attempt,
            coalesce(r.job ->> 'semantics', 'at_most_once') AS semantics, coalesce(e.effects, 0) AS effects,
            r.fence, e.fences
        FROM (SELECT s.name, r.* FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id) r
        FULL JOIN (
            SELECT schedule, key, count(*)::int AS effects, array_agg(fence) AS fences FROM effect
            GROUP BY schedule, key
        ) e ON e.schedule = r.name AND e.key = r.key
        """
    )


def _wrong_ticks(cluster: Cluster, first: Mapping[str, datetime]) -> dict[str, list[str]]:
    """Each tick from the first to the watermark must be in exactly one row."""
    rows = cluster.sql(
        """
        SELECT s.name, s.next_tick_at, array_agg(at) FILTER (WHERE at IS NOT NULL) AS found
        FROM feedq.schedule s
        LEFT JOIN feedq.run r ON r.schedule_id = s.id AND r.kind = 'tick'
        LEFT JOIN LATERAL generate_series(
            r.tick_at, coalesce(r.last_tick_at, r.tick_at), make_interval(secs => %s)) AS at ON true
        GROUP BY s.id
        """,
        (PERIOD_S,),
    )
    lost, twice, strange = [], [], []
    for row in rows:
        name, until = row["name"], row["next_tick_at"]
        found = Counter(row["found"] or ())
        wanted = _ticks(first[name], until)
        lost += [f"{name} {tick}" for tick in wanted if tick not in found]
        twice += [f"{name} {tick}" for tick, count in found.items() if count > 1]
        strange += [f"{name} {tick}" for tick in found.keys() - set(wanted)]
    rows = cluster.sql(
        """
        SELECT s.name, r.key, r.ticks FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id
        WHERE r.kind = 'tick' AND r.ticks <>
            round(extract(epoch FROM coalesce(r.last_tick_at, r.tick_at) - r.tick_at) / %s) + 1
        """,
        (PERIOD_S,),
    )
    miscounted = [str(row) for row in rows]
    return {
        "ticks lost": lost,
        "ticks twice": twice,
        "ticks that never were": strange,
        "ticks miscounted": miscounted,
    }


def _ticks(first: datetime, until: datetime) -> list[datetime]:
    count = round((until - first).total_seconds() / PERIOD_S)
    return [first + n * timedelta(seconds=PERIOD_S) for n in range(count)]


def _wrong_effects(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    def of(semantics: Semantics) -> list[Mapping[str, Any]]:
        return [row for row in runs if row["semantics"] == semantics and row["state"] is not None]

    def named(rows: Collection[Mapping[str, Any]]) -> list[str]:
        return [f"{row['name']}/{row['key']} {row['state']} {row['fences']}" for row in rows]

    most, least, exact = (of(semantics) for semantics in Semantics)
    return {
        "effects of no run": named([row for row in runs if row["state"] is None]),
        "at most once, doubled": named([row for row in most if row["effects"] > 1]),
        "at most once, succeeded without an effect": named(
            [row for row in most if row["state"] == "succeeded" and not row["effects"]]
        ),
        "at most once, more than one attempt": named([row for row in most if (row["attempt"] or 1) > 1]),
        "at least once, without an effect": named(
            [row for row in least if not row["effects"] and row["state"] not in NOT_RUN]
        ),
        "transactional, succeeded without its effect": named(
            [row for row in exact if row["state"] == "succeeded" and row["effects"] != 1]
        ),
        "transactional, not succeeded and with an effect": named(
            [row for row in exact if row["state"] != "succeeded" and row["effects"]]
        ),
        # An effect under a fence that its run never had, or under one fence twice: run without a claim.
        "one fence, two effects": named(
            [row for row in runs if row["fences"] and len(set(row["fences"])) < len(row["fences"])]
        ),
        "effects without a fence": named([row for row in runs if 0 in (row["fences"] or ())]),
    }


def _concurrent(cluster: Cluster) -> list[str]:
    """Effects with an end tell when their job ran: of a schedule whose runs must be alone, none overlap. Those of
    runs that were taken from their workers may: their jobs are told, and no more can be done."""
    rows = cluster.sql(
        """
        SELECT schedule, key FROM (
            SELECT e.schedule, e.key, e.began_at,
                max(e.ended_at) OVER (PARTITION BY e.schedule ORDER BY e.began_at, e.id
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
            FROM effect e JOIN feedq.schedule s ON s.name = e.schedule
            JOIN feedq.run r ON r.schedule_id = s.id AND r.key = e.key AND r.fence = e.fence
            WHERE r.exclusive AND r.state = 'succeeded' AND e.ended_at IS NOT NULL
        ) spans WHERE before > began_at
        """
    )
    return [f"{row['schedule']}/{row['key']}" for row in rows]
