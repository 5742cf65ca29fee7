"""How a thousand feeds move: away from a dead worker, from one that is stopped, to one that joins, and through a
rolling restart of everything.

Feeds of one record a second on real workers, beats, servers and sockets, connect pace off unless a case says
otherwise. A *gap* is the time in
which a feed had no connection: from the close of one, or the signal that killed its worker, to the hello of the
next. After each case everything that was sent has landed exactly once, and the feeds that were not concerned still
have their epochs.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from bench.floor import failover_gaps
from bench.report import Figure, at_most, say
from bench.servers import running
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from feedq.telemetry.logs import LogEvent
from tests.cluster import Cluster, feed, feed_names, wait_until
from tests.faults import PACE_OFF
from tests.invariants import wait_streaming
from tests.node import Node
from tests.source import Connection
from tests.source_process import Source
from tests.stage import Stage

FEEDS = 1_000
ROLLED_FEEDS = 400
ROLLED_WORKERS = 4
LIMIT_S = 60.0
QUIET_S = 3.0
"""So long without a move, and the fleet is taken for settled."""
DEFAULT_PACE = {
    "FEEDQ_CONNECTS_PER_S": "500",
    "FEEDQ_HOST_CONNECTS_PER_S": '{"*": 200}',
}
"""What holds where nothing is set."""
UNWATCHED_S = 1.0
"""So long after a fault nobody looks: two cores are for what is measured."""
HOLD_S = 10.0
"""More than a worker takes to start."""


def measure(directory: Path, *, feeds: int = FEEDS) -> Iterator[Figure]:
    with running(directory) as servers:
        with _fleet(directory, *servers, {"w1": feeds, "w2": feeds // 2, "w3": feeds // 2}, feeds) as stage:
            yield from _crash(stage, "500/250/250")
        with _fleet(directory, *servers, dict.fromkeys(("w1", "w2", "w3"), feeds), feeds) as stage:
            floor_s = statistics.median(failover_gaps(directory, stage.cluster.database_url, feeds // 3))
            yield from _crash(stage, "equal workers", floor_s=floor_s)
        with _fleet(
            directory, *servers, dict.fromkeys(("w1", "w2", "w3"), feeds), feeds, env=DEFAULT_PACE
        ) as stage:
            yield from _crash(stage, "equal workers, all of one host, default pace")
        with _fleet(directory, *servers, dict.fromkeys(("w1", "w2", "w3"), feeds), feeds) as stage:
            yield from _stop(stage)
        with _fleet(directory, *servers, {"w1": feeds, "w2": feeds}, feeds) as stage:
            yield from _join(stage, capacity=feeds)
            yield from _changes(stage)
        for hold_s in (0.0, HOLD_S):
            workers = {f"w{n + 1}": ROLLED_FEEDS for n in range(ROLLED_WORKERS)}
            env = {"FEEDQ_RESTART_HOLD_S": f"{hold_s:g}"}
            with _fleet(directory, *servers, workers, ROLLED_FEEDS, env=env) as stage:
                yield from _roll(stage, hold_s=hold_s)


# -- the stage ---------------------------------------------------------------------------------------


@contextmanager
def _fleet(
    directory: Path,
    postgres: Postgres,
    valkey: Valkey,
    workers: Mapping[str, int],
    feeds: int,
    *,
    env: Mapping[str, str] | None = None,
) -> Iterator[Stage]:
    """Workers with these capacities, two beats, and feeds that all stream; its first ttl is over."""
    client = valkey.client()
    client.flushall()
    client.close()
    names = feed_names(feeds)
    url = postgres.create_database("moves")
    with (
        Source(rate=1.0) as source,
        Cluster(
            directory, database_url=url, broker_url=valkey.url(), env={**PACE_OFF, **(env or {})}
        ) as cluster,
    ):
        for name in ("b1", "b2"):
            cluster.add_beat(name, env={"FEEDQ_LOG_FORMAT": "json"})
        for name, capacity in workers.items():
            cluster.add_worker(name, capacity=capacity, ready=False)
        for name in workers:
            cluster.wait_worker(name)
        cluster.apply([feed(name, source.url) for name in names])
        stage = Stage(cluster, source, names, postgres=postgres)
        stage.heal(workers=())
        _settle(stage)
        yield stage
    postgres.drop_database("moves")


def _settle(stage: Stage) -> None:
    """Wait until nothing has moved for a while."""
    seen: list[Mapping[str, int]] = [{}]
    since = [time.monotonic()]

    def is_quiet() -> bool:
        now = stage.cluster.epochs(stage.feeds)
        if now != seen[0]:
            seen[0], since[0] = now, time.monotonic()
        running = all(row.state == "running" for row in stage.cluster.leases().values())
        return running and time.monotonic() - since[0] >= QUIET_S

    wait_until(is_quiet, "nothing moves any more", interval_s=0.1)


def _counts(stage: Stage) -> dict[str, int]:
    counts = {node.name: 0 for node in stage.cluster.workers.values() if node.is_running()}
    for row in stage.cluster.leases().values():
        if row.worker is not None:
            counts[row.worker.partition("@")[0]] = counts.get(row.worker.partition("@")[0], 0) + 1
    return counts


def _gaps(connections: Sequence[Connection], *, since: float) -> dict[str, list[float]]:
    """The gaps of each feed that had one after ``since``, in seconds."""
    by_feed: dict[str, list[Connection]] = {}
    for connection in connections:
        if connection.hello_at is not None:
            by_feed.setdefault(connection.feed, []).append(connection)
    gaps: dict[str, list[float]] = {}
    for name, of_feed in by_feed.items():
        for before, after in pairwise(of_feed):
            assert after.hello_at is not None
            assert before.closed_at is not None, f"{name} had two connections at once"
            if after.hello_at >= since:
                gaps.setdefault(name, []).append(after.hello_at - max(since, before.closed_at))
    return gaps


def _wait_connected(stage: Stage, feeds: Collection[str], *, since: float) -> None:
    """Wait until each of these feeds has said hello on a connection made after ``since``."""
    wanted = set(feeds)
    # To list a thousand connections costs the source as much as to accept a hundred: not while they come.
    time.sleep(max(0.0, since + UNWATCHED_S - time.monotonic()))

    def missing() -> int:
        back = {c.feed for c in stage.source.connections() if c.hello_at is not None and c.hello_at >= since}
        return len(wanted - back)

    wait_until(
        lambda: not missing(),
        lambda: f"{len(wanted)} feeds are connected again; {missing()} are not",
        interval_s=0.05,
    )


# -- the cases ---------------------------------------------------------------------------------------


def _crash(stage: Stage, shape: str, *, floor_s: float | None = None) -> Iterator[Figure]:
    victim = stage.busiest()
    feeds = stage.cluster.feeds_of(victim)
    case = f"kill -9 of a worker, 1,000 feeds on {shape}"
    moment, median_s, figure = _leave(stage, victim, signal.SIGKILL, case, feeds)
    yield figure
    yield Figure(f"{case}: medians of its steps", "-", _steps(stage, feeds, since=moment), None)
    if floor_s is not None:
        said = f"{median_s / floor_s:.2f} ({median_s:.3f} s; two bare processes {floor_s:.3f} s)"
        yield Figure(f"{case}: gap ÷ floor, medians", "<= 3", said, median_s <= 3 * floor_s)
    yield _spread(f"kill -9 of a worker, {shape}: feeds on the others afterwards", stage)


def _steps(stage: Stage, feeds: Sequence[str], *, since: float) -> str:
    """How long each step of the failover of these feeds took, in medians, from the close of their sockets on."""
    cluster, wall_s = stage.cluster, time.time() - time.monotonic()
    lines = [line for beat in cluster.beats.values() for line in beat.events(LogEvent.WORKER_CRASHED)]
    seen = [datetime.fromisoformat(line["timestamp"]).timestamp() - wall_s for line in lines]
    rows = cluster.sql(
        "SELECT kind, percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM at))::float8 AS at "
        "FROM feedq.event JOIN feedq.feed ON feed.id = feed_id "
        "WHERE kind IN ('lease_freed', 'lease_assigned', 'lease_claimed') AND name = ANY(%s) "
        "AND at >= to_timestamp(%s) GROUP BY kind",
        (list(feeds), since + wall_s),
    )
    at = {row["kind"]: row["at"] - wall_s for row in rows}
    connections = [c for c in stage.source.connections() if c.feed in set(feeds)]
    hellos = {c.feed: c.hello_at for c in reversed(connections) if c.hello_at and c.hello_at >= since}
    closed_at = statistics.median(c.closed_at for c in connections if c.closed_at and c.closed_at >= since)
    moments = {
        "crash seen": min(one for one in seen if one >= since),
        "freed": at["lease_freed"],
        "assigned": at["lease_assigned"],
        "claimed": at["lease_claimed"],
        "fenced and connected": statistics.median(hellos.values()),
    }
    steps = zip(moments, pairwise([closed_at, *moments.values()]), strict=True)
    return ", ".join(f"{step} {after - before:.3f} s" for step, (before, after) in steps)


def _stop(stage: Stage) -> Iterator[Figure]:
    victim = stage.busiest()
    feeds = stage.cluster.feeds_of(victim)
    case = "SIGTERM of a worker, 1,000 feeds on 3 workers"
    _, _, figure = _leave(stage, victim, signal.SIGTERM, case, feeds)
    yield figure


def _leave(
    stage: Stage, victim: Node, number: signal.Signals, case: str, feeds: Sequence[str]
) -> tuple[float, float, Figure]:
    """Signal a worker. Returns when that was, and the median gap of its feeds, both in seconds, and the figure."""
    untouched = stage.epochs_but(feeds)
    moment = victim.signal(number)
    _wait_connected(stage, feeds, since=moment)
    gaps = sorted(max(_gaps(stage.source.connections(), since=moment)[name]) for name in feeds)
    victim.wait(10)
    # Evening out what is left may move others, but the failover itself has not.
    _check_untouched(stage, untouched)
    wait_streaming(stage.source, stage.feeds)
    stage.check()
    median, last = statistics.median(gaps), gaps[-1]
    say(f"{case}: {len(gaps)} feeds, gap median {median:.3f} s, last {last:.3f} s; then {_counts(stage)}")
    must = "median <= 0.1 s, last <= 0.5 s"
    measured = f"median {median:.3f} s, last {last:.3f} s ({len(gaps)} feeds)"
    return moment, median, Figure(f"{case}: gap", must, measured, median <= 0.1 and last <= 0.5)


def _spread(case: str, stage: Stage) -> Figure:
    _settle(stage)
    counts = _counts(stage)
    capacity = {
        row["name"].partition("@")[0]: row["capacity"]
        for row in stage.cluster.sql("SELECT name, capacity FROM feedq.worker WHERE state = 'active'")
    }
    total = sum(capacity[name] for name in counts if name in capacity)
    alive = {name: count for name, count in counts.items() if name in capacity}
    off = max(abs(count - len(stage.feeds) * capacity[name] / total) for name, count in alive.items())
    said = ", ".join(f"{name} {count}" for name, count in sorted(alive.items()))
    return Figure(case, "within one of even", said, off <= 1.0)


def _join(stage: Stage, *, capacity: int) -> Iterator[Figure]:
    before = stage.cluster.epochs(stage.feeds)
    node = stage.cluster.add_worker("w3", capacity=capacity)
    joined = time.monotonic()
    share = len(stage.feeds) // 3

    def is_even() -> bool:
        counts = _counts(stage)
        return max(counts.values()) - min(counts.values()) <= 1

    at = wait_until(is_even, lambda: f"the fleet is even: {_counts(stage)}", interval_s=0.05)
    _settle(stage)
    after = stage.cluster.epochs(stage.feeds)
    moved = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    there = set(stage.cluster.feeds_of(node))
    gaps = _gaps(stage.source.connections(), since=joined)
    worst = max(max(of_feed) for of_feed in gaps.values())
    stage.check()
    say(f"join: even after {at - joined:.1f} s, {len(moved)} moved, worst gap {worst:.3f} s")
    case = f"a third worker joins two with {len(stage.feeds) // 2} feeds each"
    yield at_most(f"{case}: even to within one after", 15.0, at - joined, "s")
    yield Figure(
        f"{case}: feeds moved, each once",
        f"{share} to {share + 1}, none twice",
        f"{len(moved)}, at most {max(moved.values())} time each",
        share <= len(moved) <= share + 1 and max(moved.values()) == 1,
    )
    yield at_most(f"{case}: longest gap of a moved feed", 0.5, worst, "s")
    yield Figure(
        f"{case}: others left alone",
        "no other epoch, no other gap",
        f"{len(set(moved) - there)} epochs, {len(set(gaps) - there)} gaps of others",
        not set(moved) - there and not set(gaps) - there,
    )


def _changes(stage: Stage) -> Iterator[Figure]:
    """Edit, add, fail and remove one feed of the many."""
    cluster, source = stage.cluster, stage.source
    edited, failed, removed = stage.feeds[0], stage.feeds[1], stage.feeds[2]
    before = cluster.epochs(stage.feeds)
    cluster.feedq("feed", "set", edited, "source.idle_timeout_s=77")
    # Columns of a table that is not there: it cannot run.
    cluster.feedq("feed", "set", failed, "sink.columns.seq=/seq", "sink.table=missing")
    cluster.feedq("feed", "remove", removed, "--yes", "--wait")
    cluster.apply([feed("added/one", source.url)])
    wait_until(
        lambda: cluster.leases()["added/one"].connected and cluster.leases()[failed].reason == "failed",
        lambda: f"one is added and one has failed: {cluster.leases().get(failed)}",
    )
    _settle_but(stage, {failed})
    after = cluster.epochs()
    others = [n for n in stage.feeds if n not in (edited, failed, removed)]
    changed = [name for name in others if after[name] != before[name]]
    yield Figure(
        "edit, add, fail and remove one of 1,000: others whose epoch changed",
        "0",
        str(len(changed)),
        not changed,
    )
    cluster.feedq("feed", "remove", "added/one", "--yes", "--wait")
    cluster.feedq("feed", "remove", failed, "--yes", "--wait")
    stage.feeds = [n for n in stage.feeds if n not in (failed, removed)]


def _settle_but(stage: Stage, left_out: Collection[str]) -> None:
    wait_until(
        lambda: all(
            row.state == "running" for name, row in stage.cluster.leases().items() if name not in left_out
        ),
        "everything else runs",
        interval_s=0.1,
    )


def _roll(stage: Stage, *, hold_s: float) -> Iterator[Figure]:
    before = stage.cluster.epochs(stage.feeds)
    began = time.monotonic()
    for name in list(stage.cluster.workers):
        node = stage.cluster.workers[name]
        node.signal(signal.SIGTERM)
        node.wait(10)
        stage.cluster.add_worker(name, capacity=ROLLED_FEEDS)
        wait_streaming(stage.source, stage.feeds)
    _settle(stage)
    after = stage.cluster.epochs(stage.feeds)
    moves = sum(after[name] - before[name] for name in stage.feeds)
    gaps = _gaps(stage.source.connections(), since=began)
    worst = max(max(of_feed) for of_feed in gaps.values())
    stage.check()
    held = f", FEEDQ_RESTART_HOLD_S={hold_s:g}" if hold_s else ""
    case = f"rolling restart of {ROLLED_WORKERS} workers, {len(stage.feeds)} feeds{held}"
    say(f"{case}: {moves} moves, longest gap {worst:.2f} s, then {_counts(stage)}")
    yield at_most(f"{case}: moves", (1 if hold_s else 2) * len(stage.feeds), moves, "moves")
    if hold_s:
        # With a hold a feed is down for as long as its worker takes to come back: that is what was asked for.
        yield Figure(f"{case}: longest gap", "-", f"{worst:.2f} s, the restart of a worker", None)
    else:
        yield at_most(f"{case}: longest gap", 1.0, worst, "s")


def _check_untouched(stage: Stage, untouched: Mapping[str, int]) -> None:
    now = stage.cluster.epochs(untouched)
    changed = sorted(name for name, epoch in untouched.items() if now.get(name) != epoch)
    say(f"others whose epoch changed: {len(changed)}")
