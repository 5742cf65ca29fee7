"""A thread of a worker dies, or hangs: `/healthz` sees it, the worker is ended, and its feeds go on elsewhere."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedq.local.postgres import Postgres
from feedq.local.process import free_port
from feedq.local.valkey import Valkey
from feedq.worker.watch import STUCK_S
from tests import broken_threads
from tests.broken_threads import Fault, break_thread, hung
from tests.cluster import wait_until
from tests.isolation import NEIGHBOURS, Neighbourhood, neighbourhood
from tests.proxy import PostgresProxy

pytestmark = pytest.mark.timeout(240)

UNHEALTHY_S = 5.0
ELSEWHERE_S = 12.0
SLACK_S = 3.0
"""On a machine that is busy with other things."""
THREADS = (
    "feedq-keeper",
    "feedq-lease-client",
    "feedq-loop",
    "feedq-watch",
    "feedq-writer-default",
    "feedq-fencer-default",
    "feedq-jobs",
)
VICTIM = "w1"


class Place:
    """Three workers, one of which has a thread that breaks."""

    def __init__(self, neighbourhood: Neighbourhood, directory: Path) -> None:
        self.neighbourhood, self._directory = neighbourhood, directory
        self._port = free_port()

    def heal(self) -> None:
        place, cluster = self.neighbourhood, self.neighbourhood.cluster
        if VICTIM in cluster.workers and cluster.workers[VICTIM].env.get("FEEDQ_METRICS_PORT"):
            cluster.workers[VICTIM].end()
        else:
            cluster.workers.pop(VICTIM).end(grace_s=5.0)
        cluster.add_worker(VICTIM, env={"FEEDQ_METRICS_PORT": str(self._port)})
        place.heal()
        wait_until(lambda: self.running_on(VICTIM), "it has feeds", limit_s=60)
        wait_until(self.is_healthy, "it is healthy", limit_s=10)

    def running_on(self, worker: str, *, but: bool = False) -> list[str]:
        """The feeds that run there; or the others."""
        worker_id = self.neighbourhood.cluster.worker_id(self.neighbourhood.cluster.workers[worker])
        rows = self.neighbourhood.cluster.sql(
            "SELECT f.name FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id "
            "WHERE l.state = 'running' AND (l.worker_id = %s) <> %s",
            (worker_id, but),
        )
        return [row["name"] for row in rows]

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=2):
                return True
        except urllib.error.HTTPError:
            return False
        except OSError:
            return not self.neighbourhood.cluster.workers[VICTIM].is_running()

    def break_thread(self, thread: str, fault: Fault) -> float:
        """Returns the moment."""
        victim = self.neighbourhood.cluster.workers[VICTIM]
        break_thread(self._directory, victim.pid, thread, fault)
        if thread == "feedq-fencer-default":
            # It is there only while there is something to fence.
            other = self.running_on(VICTIM, but=True)[0]
            self.neighbourhood.cluster.feedq("feed", "move", other, "--to", VICTIM)
        if fault == "hangs in the driver":
            there = hung(self._directory, victim.pid, thread)
            wait_until(there.exists, "it hangs", limit_s=30, interval_s=0.02)
        return time.monotonic()

    def check(self, thread: str, fault: Fault) -> None:
        """Break it, and assert what follows."""
        place, victim = self.neighbourhood, self.neighbourhood.cluster.workers[VICTIM]
        worker_id = place.cluster.worker_id(victim)
        broke_at = self.break_thread(thread, fault)
        was_unhealthy_at = wait_until(
            lambda: not self.is_healthy() or not victim.is_running(), "unhealthy", limit_s=30
        )
        wait_until(lambda: not victim.is_running(), "it is ended", limit_s=30)
        place.wait_landing(NEIGHBOURS)
        elsewhere_at = time.monotonic()
        (row,) = place.cluster.sql("SELECT loss FROM feedq.worker WHERE id = %s", (worker_id,))
        assert thread in row["loss"] or thread == "feedq-loop", row
        assert was_unhealthy_at - broke_at <= UNHEALTHY_S + SLACK_S
        assert elsewhere_at - broke_at <= ELSEWHERE_S + SLACK_S
        assert not any(place.lease(feed)["blamed"] for feed in NEIGHBOURS)
        place.check_each_once()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, valkey: Valkey) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("threads")
    env = {"FEEDQ_IMPORTS": "tests.broken_threads", broken_threads.VARIABLE: str(directory)}
    with neighbourhood(
        directory,
        database_url=postgres.create_database("threads"),
        broker_url=valkey.url(database=8),
        env=env,
    ) as made:
        yield Place(made, directory)


@pytest.mark.parametrize("fault", ["hangs", "dies"])
@pytest.mark.parametrize("thread", THREADS)
def test_a_worker_with_a_broken_thread_is_ended_and_its_feeds_go_on_elsewhere(
    place: Place, thread: str, fault: Fault
) -> None:
    place.heal()
    place.check(thread, fault)


@pytest.mark.parametrize("thread", ["feedq-keeper", "feedq-lease-client", "feedq-jobs"])
def test_so_is_one_with_a_thread_that_hangs_in_the_driver_of_the_control_database(
    place: Place, thread: str
) -> None:
    place.heal()
    place.check(thread, "hangs in the driver")


def test_a_database_that_does_not_answer_ends_no_worker(place: Place) -> None:
    """Its threads wait, for longer than any of them may stand still; its feeds go on elsewhere meanwhile."""
    cluster = place.neighbourhood.cluster
    place.neighbourhood.heal()
    with PostgresProxy(cluster.database_url) as proxy:
        cut_off = cluster.add_worker("w4", env={"FEEDQ_DATABASE_URL": proxy.url})
        wait_until(lambda: place.running_on("w4"), "it has feeds", limit_s=60)
        proxy.hang()
        time.sleep(3 * STUCK_S)  # longer than a thread may stand still
        place.neighbourhood.wait_landing(NEIGHBOURS)
        assert cut_off.is_running()
        proxy.resume()
        cluster.wait_worker("w4")
        wait_until(lambda: place.running_on("w4"), "it has feeds again", limit_s=60)
        assert "worker lost" not in cut_off.text()
        place.neighbourhood.check_each_once()
        cut_off.end(grace_s=5.0)
    del cluster.workers["w4"]
