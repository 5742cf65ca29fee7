"""`Neighbourhood`: one feed that ends the process it runs in, and thirty that must not suffer from it.

3 workers, and 30 feeds of 10 records a second that count from 1 on, so that a lost or doubled record shows. What
happened is read from the control tables and the landing table.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedq.core.lease import QUARANTINE_MAX_S
from tests import poison
from tests.cluster import ROOT, Cluster, wait_until

WORKERS = ("w1", "w2", "w3")
NEIGHBOURS = [f"n/{number:02d}" for number in range(30)]
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one poisonous feed did, times in seconds since it became so."""

    workers_lost: int
    named_after_s: float
    ended_after_s: float | None
    """Until the first worker had ended; None when none did."""
    silence_s: float
    """The longest that a neighbour landed nothing."""


class Neighbourhood:
    """The cluster and its feeds."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._numbers = itertools.count(1)

    def begin(self) -> None:
        self.cluster.add_beat("b1")
        self.cluster.add_workers(WORKERS)
        self.cluster.apply([declared(name) for name in NEIGHBOURS])
        self.wait_landing(NEIGHBOURS)

    def heal(self) -> None:
        self.cluster.heal(workers=WORKERS)
        self.wait_landing(NEIGHBOURS)

    def poison(self, deed: poison.Deed, connector: str = "numbers", *, harmless: int = 10) -> str:
        """Add a feed that is harmless yet; its name."""
        name = f"poison/{next(self._numbers):02d}"
        options = {"then": deed, "while_exists": str(self.flag(name)), "harmless": harmless}
        self.cluster.apply([declared(name, connector, options)])
        self.wait_landing([name])
        return name

    def flag(self, name: str) -> Path:
        """The file whose existence makes a feed poisonous."""
        return self.cluster.directory / name.replace("/", "-")

    def do(self, name: str) -> Outcome:
        """Let it be poisonous, until it is in quarantine and all others land again."""
        running = {node.name for node in self.cluster.workers.values() if node.is_running()}
        began_at = self.now()
        began = time.monotonic()
        self.flag(name).touch()
        ended: dict[str, float] = {}

        def note_ended() -> None:
            for worker in running - ended.keys():
                if not self.cluster.workers[worker].is_running():
                    ended[worker] = time.monotonic() - began

        def is_apart() -> bool:
            note_ended()
            row = self.lease(name)
            return bool(row["quarantined"]) and not self._runs_in_company(row)

        named = wait_until(is_apart, lambda: f"quarantined: {self.lease(name)}") - began
        self.wait_landing(NEIGHBOURS, meanwhile=note_ended)
        return Outcome(
            workers_lost=len(ended),
            named_after_s=named,
            ended_after_s=min(ended.values(), default=None),
            silence_s=self.silence_s(began_at),
        )

    def _runs_in_company(self, row: Mapping[str, Any]) -> bool:
        return bool(row["state"] == "running" and row["running_since"] < row["blamed_at"])

    def now(self) -> Any:
        return self.cluster.sql("SELECT clock_timestamp() AS now")[0]["now"]

    def lease(self, name: str) -> dict[str, Any]:
        return self.cluster.sql(
            "SELECT l.* FROM feedq.lease l JOIN feedq.feed f ON f.id = l.feed_id WHERE f.name = %s", (name,)
        )[0]

    def events(self, kind: str, name: str) -> list[dict[str, Any]]:
        return self.cluster.sql(
            "SELECT e.* FROM feedq.event e JOIN feedq.feed f ON f.id = e.feed_id "
            "WHERE e.kind = %s AND f.name = %s ORDER BY e.id",
            (kind, name),
        )

    def wait_landing(
        self, names: list[str], *, limit_s: float = LIMIT_S, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until each of these has landed something that was received from now on."""
        since = self.now()

        def behind() -> list[str]:
            meanwhile()
            rows = self.cluster.sql("SELECT DISTINCT feed FROM landed WHERE received_at > %s", (since,))
            return sorted(set(names) - {row["feed"] for row in rows})

        self.cluster.sql(LANDED)
        wait_until(
            lambda: not behind(), lambda: f"all land: {behind()} do not", limit_s=limit_s, interval_s=0.1
        )

    def silence_s(self, since: Any) -> float:
        """The longest time between two records of a neighbour, as they were received, after a moment."""
        rows = self.cluster.sql(
            """
            SELECT coalesce(max(gap), 0)::float8 AS longest FROM (
                SELECT extract(epoch FROM received_at - lag(received_at)
                                                        OVER (PARTITION BY feed ORDER BY received_at)) AS gap
                FROM landed WHERE feed = ANY(%s) AND received_at > %s - interval '1 s'
            ) gaps
            """,
            (NEIGHBOURS, since),
        )
        return float(rows[0]["longest"])

    def check_each_once(self) -> None:
        """Assert that every record from 1 on landed once."""
        wrong = self.cluster.sql(
            """
            SELECT feed, count(*), count(DISTINCT payload), max((payload->>'n')::bigint) FROM landed GROUP BY feed
            HAVING count(*) <> max((payload->>'n')::bigint) OR count(*) <> count(DISTINCT payload)
            """
        )
        assert not wrong, wrong

    def mend(self, name: str) -> None:
        """Let it be harmless for as long as a quarantine lasts, and wait until it streams among the others."""
        self.flag(name).unlink()
        self.wait_landing([name])
        self.cluster.sql(
            "UPDATE feedq.lease SET running_since = running_since - length, blamed_at = blamed_at - length "
            "FROM make_interval(secs => %s) length "
            "WHERE feed_id = (SELECT id FROM feedq.feed WHERE name = %s)",
            (QUARANTINE_MAX_S, name),
        )
        wait_until(lambda: not self.lease(name)["quarantined"], lambda: f"pardoned: {self.lease(name)}")
        self.wait_landing([name])

    def remove(self, name: str) -> None:
        self.cluster.feedq("feed", "remove", name, "--yes")


LANDED = """
    CREATE TABLE IF NOT EXISTS landed (
        feed text NOT NULL, epoch bigint NOT NULL, received_at timestamptz NOT NULL, payload jsonb NOT NULL
    )
"""


def declared(
    name: str, connector: str = "numbers", options: Mapping[str, object] | None = None
) -> dict[str, Any]:
    return {"name": name, "connector": connector, "source": dict(options or {}), "sink": {"table": "landed"}}


@contextmanager
def neighbourhood(
    directory: Path, *, database_url: str, broker_url: str, env: Mapping[str, str]
) -> Iterator[Neighbourhood]:
    """A cluster that streams."""
    poison.install(directory)
    paths = {"PYTHONPATH": f"{directory}:{ROOT}", "FEEDQ_STATE_DIR": str(directory / "state")}
    with Cluster(
        directory, database_url=database_url, broker_url=broker_url, env={**paths, **env}
    ) as cluster:
        made = Neighbourhood(cluster)
        made.begin()
        yield made
