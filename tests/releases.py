"""Two releases of feedq on one control database, with feeds and schedules that go on while processes come and go.

The release before is another tree: a copy of this one, or a checkout of a commit. If it calls the same version of
the protocol, it is given another number, so that each release has functions of its own.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from feedq.control.store import protocol
from feedq.control.store.grants import Role
from feedq.control.store.postgresql import PostgresStore
from tests.chaos import effects, ticking
from tests.cluster import ROOT, Cluster, Place, feed, feed_names, url_of, wait_until
from tests.invariants import check_invariants, wait_streaming
from tests.source_process import Source

FEEDS: Final = 12
EACH: Final = 3
"""Schedules of each semantics."""
RATE: Final = 20.0
LIMIT_S: Final = 60.0
SETTINGS: Final = {
    "FEEDQ_IMPORTS": "tests.chaos.effects",
    "FEEDQ_SETTLE_S": "0.5",
    "FEEDQ_RECONCILE_INTERVAL_S": "0.5",
}
BEFORE_THIS: Final = protocol.VERSION - 1
"""The version of the protocol that the release before is given where it has none of its own."""


def copy_of_this(directory: Path) -> Path:
    """The package of this tree as another release: the same but for the number of its protocol."""
    tree = directory / "before"
    shutil.copytree(ROOT / "feedq", tree / "feedq", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "tests").symlink_to(ROOT / "tests")
    set_apart(tree)
    return tree


def set_apart(tree: Path) -> None:
    """Give the protocol of a tree another number, if it has that of this one."""
    for file in (*tree.glob("feedq/**/*.py"), *tree.glob("feedq/**/*.sql")):
        text = file.read_text()
        file.write_text(re.sub(rf"\b{protocol.SCHEMA}\b", f"feedq_{BEFORE_THIS}", text))


def migrate(cluster: Cluster) -> str:
    """`feedq db upgrade` of a release, in the role of migrations."""
    url = url_of(cluster.database_url, Role.MIGRATION)
    return cluster.feedq("db", "upgrade", env={"FEEDQ_DATABASE_URL": url})


@contextmanager
def begun(place: Place, tree: Path) -> Iterator[Rollout]:
    """The release before has migrated, and feeds and schedules are declared; no process of either runs yet."""
    places = [
        replace(place, directory=place.directory / name) for name in ("release-before", "release-after")
    ]
    for each in places:
        each.directory.mkdir()
    with (
        Source(rate=RATE) as source,
        places[0].cluster(env=SETTINGS, migrate=False, with_roles=True, forks=False, tree=tree) as before,
        places[1].cluster(env=SETTINGS, migrate=False, with_roles=True) as after,
    ):
        migrate(before)
        before.make(effects.TABLE)
        feeds = feed_names(FEEDS)
        before.apply(
            [feed(name, source.url) for name in feeds],
            schedules=[spec.plain() for spec in ticking.ticking(each=EACH)],
        )
        ticks = before.sql("SELECT name, next_tick_at FROM feedq.schedule")
        yield Rollout(before, after, source, feeds, {row["name"]: row["next_tick_at"] for row in ticks})


@dataclass
class Rollout:
    """The clusters of both releases, and what goes on meanwhile."""

    before: Cluster
    after: Cluster
    source: Source
    feeds: list[str]
    first: Mapping[str, datetime]
    """The first tick of each schedule."""

    def join(self, cluster: Cluster) -> None:
        """Start a beat and a worker of this release. Returns once each worker has feeds and has done runs."""
        since = self._now()
        cluster.add_beat("beat")
        cluster.add_worker("worker")
        cluster.wait_candidate(cluster.beats["beat"])
        running = [node.pid for side in (self.before, self.after) for node in side.workers.values()]
        wait_until(
            lambda: self._idle(running, since) == [],
            lambda: f"each worker has feeds and has done runs; not {self._idle(running, since)}",
        )

    def leave(self, cluster: Cluster) -> None:
        """End the processes of this release in good order. Returns once all streams elsewhere."""
        nodes = [*cluster.beats.values(), *cluster.workers.values()]
        for node in nodes:
            node.signal(signal.SIGTERM)
        for node in nodes:
            assert node.wait(LIMIT_S) == 0, node.text()[-3000:]
        cluster.beats.clear()
        cluster.workers.clear()
        other = self.after if cluster is self.before else self.before
        other.wait_leader()
        wait_streaming(self.source, self.feeds)

    def check(self) -> ticking.Account:
        """Raises `AssertionError` unless all has landed once, each tick was fired once, and runs ended as they
        should."""
        check_invariants(self.after, self.source, self.feeds)
        self.end_runs()
        account = ticking.account(self.after, self.first)
        assert ticking.wrongly_ended(self.after) == []
        return account

    def end_runs(self) -> None:
        """Let no more ticks be fired, and wait until every run has ended."""
        with closing(PostgresStore(self.after.database_url)) as store:
            ticking.end(self.after, store.jobs.schedules, self.first)

    def _idle(self, pids: list[int], since: datetime) -> list[str]:
        """Which of these workers have no feeds, or have done no runs since then."""
        rows = self.after.sql(
            """
            SELECT name || ' ' || pid AS worker FROM feedq.worker w
            WHERE pid = ANY(%s) AND state = 'active' AND NOT (
                EXISTS (SELECT FROM feedq.lease l WHERE l.worker_id = w.id AND l.state = 'running')
                AND EXISTS (SELECT FROM feedq.run r
                    WHERE r.worker_id = w.id AND r.state = 'succeeded' AND r.ended_at > %s))
            """,
            (pids, since),
        )
        return [row["worker"] for row in rows]

    def _now(self) -> datetime:
        now: datetime = self.after.sql("SELECT clock_timestamp() AS now")[0]["now"]
        return now
