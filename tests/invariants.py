"""What must hold after every fault, and how long the feeds took.

`check_invariants` compares three witnesses that know nothing of each other: what the source says it sent,
what is in the landing table, and what the lease rows say. No record lost, none twice, no epoch after a newer
one, never two live connections of a feed, and the feeds that a fault did not concern keep their epoch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.cluster import Cluster, wait_until
from tests.source import Connection
from tests.source_process import Source

LANDING_LIMIT_S = 20.0
"""For everything sent to be in the table: a group commit later, usually; this is for a busy machine."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, and how many connections the source had seen by then."""

    at: float
    connections: int


@dataclass(frozen=True, slots=True)
class Took:
    """What a fault cost: seconds until each concerned feed streamed again, and what else was measured."""

    delays_s: tuple[float, ...]
    exit_s: float | None = None
    """From SIGTERM to the end of the process."""

    @property
    def median_s(self) -> float:
        return statistics.median(self.delays_s)

    @property
    def last_s(self) -> float:
        return max(self.delays_s)

    def __str__(self) -> str:
        said = f"{len(self.delays_s)} feeds: median {self.median_s:.3f} s, last {self.last_s:.3f} s"
        return said if self.exit_s is None else f"{said}, process ended after {self.exit_s:.3f} s"


@dataclass(frozen=True, slots=True)
class Landed:
    """What the landing table holds of one feed."""

    count: int
    distinct: int
    first: int
    last: int


def mark(source: Source) -> Mark:
    return Mark(time.monotonic(), len(source.connections()))


def wait_streaming(source: Source, feeds: Collection[str], *, limit_s: float = 40.0) -> float:
    """Wait until each of these feeds has a live connection that was sent a record."""

    def missing() -> list[str]:
        live = source.live()
        return [name for name in feeds if name not in live or live[name].first_record_at is None]

    return wait_until(
        lambda: not missing(),
        lambda: _some("feeds stream; missing", missing()),
        limit_s=limit_s,
        interval_s=0.05,
    )


def wait_resumed(
    source: Source, feeds: Collection[str], *, after: Mark, limit_s: float, since: float | None = None
) -> Took:
    """Wait until each feed streams on a connection made after the mark.

    The delays count from ``since``, or from the mark, to the first record of that connection.
    """
    begin = after.at if since is None else since
    resumed: dict[str, float] = {}

    def done() -> bool:
        for connection in source.connections(since=after.connections):
            if connection.feed in feeds and connection.first_record_at is not None:
                resumed.setdefault(connection.feed, connection.first_record_at - begin)
        return len(resumed) == len(feeds)

    wait_until(
        done,
        lambda: _some("feeds resumed; missing", sorted(set(feeds) - set(resumed))),
        limit_s=limit_s,
        interval_s=0.05,
    )
    return Took(tuple(sorted(resumed.values())))


def connections_of(source: Source, feeds: Iterable[str]) -> list[int]:
    """Ids of the live connections of these feeds: those that a frozen process cannot close."""
    wanted = set(feeds)
    return [c.id for c in source.connections() if c.is_live() and c.feed in wanted]


def landed(cluster: Cluster, *, table: str = "landed") -> dict[str, Landed]:
    rows = cluster.sql(
        f"""
        SELECT feed, count(*) AS count, count(DISTINCT payload->>'seq') AS distinct,
               min((payload->>'seq')::bigint) AS first, max((payload->>'seq')::bigint) AS last
        FROM {table} GROUP BY feed
        """
    )
    return {row.pop("feed"): Landed(**row) for row in rows}


def check_invariants(
    cluster: Cluster,
    source: Source,
    feeds: Collection[str],
    *,
    untouched: Mapping[str, int] | None = None,
    frozen: Collection[int] = (),
    table: str = "landed",
) -> None:
    """Fail unless everything sent so far landed exactly once, and nobody shared a feed.

    ``untouched`` are epochs that must still be the same; ``frozen`` are connections of frozen processes.
    """
    _check_landed(cluster, source, feeds, table=table)
    _check_epochs_only_grow(cluster, table=table)
    _check_connections(source, frozen=frozen)
    if untouched is not None:
        now = cluster.epochs(untouched)
        changed = [f"{n}: {epoch} to {now.get(n)}" for n, epoch in untouched.items() if now.get(n) != epoch]
        assert not changed, _some("untouched feeds changed their epoch", changed)


def _check_landed(cluster: Cluster, source: Source, feeds: Collection[str], *, table: str) -> None:
    sent = source.sent()
    never = [name for name in feeds if not sent.get(name)]
    assert not never, _some("feeds that were never sent a record", never)

    def behind() -> list[str]:
        have = landed(cluster, table=table)
        return [name for name in feeds if name not in have or have[name].last < sent[name]]

    wait_until(
        lambda: not behind(),
        lambda: _describe_behind(cluster, source, behind(), sent, table=table),
        limit_s=LANDING_LIMIT_S,
        interval_s=0.1,
    )
    have = landed(cluster, table=table)
    doubled = [f"{n}: {have[n]}" for n in feeds if have[n].count != have[n].distinct]
    assert not doubled, _some("records doubled", doubled)
    lost = [f"{n}: {have[n]}" for n in feeds if have[n].first != 1 or have[n].last != have[n].distinct]
    assert not lost, _some("records lost", lost)
    mixed = cluster.sql(f"SELECT count(*) AS n FROM {table} WHERE payload->>'feed' <> feed")[0]["n"]
    assert mixed == 0, f"{mixed} records stand under another feed's name"


def _describe_behind(
    cluster: Cluster, source: Source, behind: Sequence[str], sent: Mapping[str, int], *, table: str
) -> str:
    """Who is to blame when records do not land: the source, the worker, or the database."""
    have, now, live, leases = landed(cluster, table=table), source.sent(), source.live(), cluster.leases()
    told = []
    for name in behind:
        reader = f"its reader got {live[name].last_seq}" if name in live else "nobody reads it"
        lease = f"{leases[name].state} on {leases[name].worker}" if name in leases else "it has no lease"
        last = have[name].last if name in have else 0
        told.append(f"{name}: sent {sent[name]} and {now[name]} by now, landed {last}; {reader}; {lease}")
    waiting = cluster.sql(
        "SELECT application_name, wait_event, left(query, 60) AS query FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return f"{_some('what was sent has landed; behind', told)}; sessions that wait for locks: {waiting}"


def _check_epochs_only_grow(cluster: Cluster, *, table: str) -> None:
    wrong = cluster.sql(
        f"""
        SELECT feed, seq, epoch, before FROM (
            SELECT feed, (payload->>'seq')::bigint AS seq, epoch,
                   lag(epoch) OVER (PARTITION BY feed ORDER BY (payload->>'seq')::bigint) AS before
            FROM {table}) s
        WHERE epoch < before
        """
    )
    assert not wrong, _some("records written under a superseded epoch", [str(row) for row in wrong])


def _check_connections(source: Source, *, frozen: Collection[int]) -> None:
    troubles = [f"{c.feed}: {c.trouble}" for c in source.connections() if c.trouble]
    assert not troubles, _some("the source complains", troubles)
    shared = [_describe(one, two) for one, two in source.overlaps(ignored=tuple(frozen))]
    assert not shared, _some("two live connections of one feed", shared)


def _describe(one: Connection, two: Connection) -> str:
    assert two.hello_at is not None
    ended = "is still open" if one.closed_at is None else f"ended {one.closed_at - two.hello_at:.4f} s later"
    return f"{one.feed}: connection {one.id} {ended} when connection {two.id} began"


def _some(what: str, items: Collection[str]) -> str:
    """A sentence that names the first few and counts the rest."""
    shown = sorted(items)[:5]
    more = f" and {len(items) - len(shown)} more" if len(items) > len(shown) else ""
    return f"{what}: {'; '.join(shown)}{more}"
