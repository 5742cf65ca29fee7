"""A primary dies, and its asynchronous standby, which had not received everything, takes its address over."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from operator import eq, gt
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest

from feedq.local.postgres import USER, Postgres
from feedq.local.server import make_private_dir, write_private
from tests.chaos import storm
from tests.chaos.conftest import Stages
from tests.chaos.test_sink_goes_back import FEEDS, landed, wait_landed
from tests.cluster import Cluster, Row, feed, feed_names, wait_until
from tests.invariants import connections_of
from tests.proxy import PlainProxy
from tests.source_process import Source

pytestmark = pytest.mark.timeout(180)

LOST = 50
"""Records of each feed that only the primary has when it dies."""
SHOWN_MAX_S = 2.0
"""What `lease.md` promises of a feed that nobody runs."""


class Pair:
    """A primary and its standby. The one that was promoted is the next test's primary."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._made = directory, 0
        self.primary: Postgres = Postgres(self._home(), settings={"fsync": "off"})
        self.primary.start()

    def _home(self) -> Path:
        self._made += 1
        home = self._directory / f"server{self._made}"
        home.mkdir(mode=0o711)
        return home

    @contextmanager
    def standing_by(self) -> Iterator[tuple[Standby, PlainProxy]]:
        """A standby, and the way of its replication."""
        with PlainProxy(self.primary.url()) as replication:
            standby = Standby(self._home(), self.primary, replication)
            try:
                standby.start()
                yield standby, replication
            finally:
                self.primary.stop()
                self.primary = standby


@pytest.fixture(scope="module")
def pair(servers_dir: Path) -> Iterator[Pair]:
    made = Pair(servers_dir)
    yield made
    made.primary.stop()


def rewound(cluster: Cluster) -> set[str]:
    rows = cluster.sql(
        "SELECT DISTINCT f.name FROM feedq.event e JOIN feedq.feed f ON f.id = e.feed_id "
        "WHERE e.kind = 'sink_rewound'"
    )
    return {row["name"] for row in rows}


def held(leases: dict[str, Row], worker: str) -> set[str]:
    return {name for name, row in leases.items() if (row.worker or "").startswith(f"{worker}@")}


def shown_without_a_connection_s(
    cluster: Cluster, source: Source, *, until: Callable[[dict[str, Row]], bool], what: str
) -> float:
    """How long at most a feed was shown as connected on w1 meanwhile, of whom the source has no connection.

    What is shown of a frozen worker ends with its ttl."""
    began: dict[str, float] = {}
    longest = 0.0

    def look() -> bool:
        nonlocal longest
        leases, live, now = cluster.leases(), source.live(), time.monotonic()
        mine = held(leases, "w1")
        for name, row in leases.items():
            if name in mine and row.connected and name not in live:
                longest = max(longest, now - began.setdefault(name, now))
            else:
                began.pop(name, None)
        return until(leases)

    wait_until(look, what)
    return longest


@pytest.mark.parametrize("of_sink", [True, False], ids=["control and sink", "control"])
def test_a_standby_that_lacks_commits_takes_over_with_nothing_lost_or_doubled(
    of_sink: bool,
    pair: Pair,
    stages: Stages,
    tmp_path: Path,
    database_url: str,
    broker_url: str,
) -> None:
    """Epochs that were lost with the primary are given out again, while one who has them is frozen."""
    stages.discard()  # it would take part of the machine
    names = feed_names(FEEDS)
    with ExitStack() as open_:
        mine = pair.primary.create_database(f"failover_{of_sink}".lower())
        standby, replication = open_.enter_context(pair.standing_by())
        address = open_.enter_context(PlainProxy(mine))
        sink_url = address.url if of_sink else database_url
        source = open_.enter_context(Source(rate=50))
        cluster = open_.enter_context(
            Cluster(
                tmp_path,
                database_url=address.url,
                broker_url=broker_url,
                env={**storm.SETTINGS, "FEEDQ_SINKS__OWN": sink_url},
            )
        )
        cluster.add_beat("b1")
        for worker in ("w1", "w2"):
            cluster.add_worker(worker)
        cluster.apply([feed(name, source.url, sink="own") for name in names])
        wait_landed(sink_url, names, 20)

        replication.hang()
        seen = max(last for _, _, last, _ in landed(sink_url).values())
        before = cluster.leases()
        again = {*held(before, "w2"), min(held(before, "w1"))}
        cluster.feedq("feed", "restart", *sorted(again), "--wait")
        wait_landed(sink_url, names, seen + LOST)
        lost = cluster.leases()
        assert all(lost[name].epoch > before[name].epoch for name in again)
        cluster.workers["w2"].freeze()
        frozen = connections_of(source, held(lost, "w2"))

        pair.primary.kill()
        address.lead_to(standby.url())
        standby.promote()
        back = landed(sink_url)
        assert (min(last for _, _, last, _ in back.values()) < seen + LOST) == of_sink

        assert (
            shown_without_a_connection_s(
                cluster, source, until=lambda leases: held(leases, "w1") == set(names), what="w1 has all"
            )
            < SHOWN_MAX_S
        )
        theirs = held(lost, "w2")

        def epochs_of_the_frozen(*, given: Callable[[int, int], bool]) -> bool:
            now = cluster.epochs(theirs)
            return all(given(now[name], lost[name].epoch) for name in theirs)

        if of_sink:
            assert epochs_of_the_frozen(given=eq)
        else:
            # The sink knows the epoch that the control database has given out again, and has it raised.
            wait_until(lambda: epochs_of_the_frozen(given=gt), "larger epochs")
        cluster.workers["w2"].thaw()
        wait_landed(sink_url, names, seen + 3 * LOST)
        assert not source.overlaps(ignored=frozen)
        for name, (rows, different, last, first) in landed(sink_url).items():
            assert (name, rows - different, last - first + 1 - different) == (name, 0, 0)
        if of_sink:
            wait_until(lambda: rewound(cluster) >= held(lost, "w1") - again, "events")
        else:
            assert not rewound(cluster)


# -- the standby -------------------------------------------------------------------------------------

PROMOTED_S = 20
BACKUP_LIMIT_S = 60.0


class Standby(Postgres):
    """Another server, whose files are a base backup of the primary's. Once promoted it is a primary itself."""

    def __init__(self, data_dir: Path, primary: Postgres, replication: PlainProxy) -> None:
        super().__init__(data_dir, settings=primary.settings)
        self._from = replication.url
        write_private(self.home / f"{self.kind}.password", _password(primary.url()), account=self.account)

    def promote(self) -> None:
        """End the replication for good; returns once it can be written to."""
        with closing(psycopg2.connect(self.url(), connect_timeout=5)) as session, session.cursor() as cursor:
            cursor.execute("SELECT pg_promote(wait_seconds => %s)", (PROMOTED_S,))
            assert cursor.fetchone() == (True,), f"not promoted within {PROMOTED_S} s"

    def _init_cluster(self) -> None:
        primary = urlsplit(self._from)
        make_private_dir(self.cluster, account=self.account)
        subprocess.run(
            [
                str(self.binaries.bin / "pg_basebackup"),
                f"--pgdata={self.cluster}",
                f"--host={primary.hostname}",
                f"--port={primary.port}",
                f"--username={USER}",
                *("--no-sync", "--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf"),
            ],
            check=True,
            timeout=BACKUP_LIMIT_S,
            cwd=self.home,
            env={"PGPASSWORD": _password(self._from), "LC_ALL": "C", "TZ": "UTC"},
            user=self.account.uid if self.account else None,
            group=self.account.gid if self.account else None,
            extra_groups=[] if self.account else None,
        )


def _password(url: str) -> str:
    found = urlsplit(url).password
    assert found is not None
    return found
