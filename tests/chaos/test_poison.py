"""Feeds whose code ends the process that it runs in: their neighbours go on, and the culprit is named.

Figures are for ``make bench ARGS=isolation``; the limits here are for a noisy machine.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from tests.cluster import wait_until
from tests.isolation import NEIGHBOURS, WORKERS, Neighbourhood, declared, neighbourhood
from tests.poison import Deed

pytestmark = pytest.mark.timeout(240)

STALL_S = 2.0
WORKER_BYTES = 400 * 2**20


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, valkey: Valkey
) -> Iterator[Neighbourhood]:
    env = {
        "FEEDQ_STALL_S": str(STALL_S),
        "FEEDQ_MEMORY_LIMIT": str(WORKER_BYTES),
    }
    with neighbourhood(
        tmp_path_factory.mktemp("poison"),
        database_url=postgres.create_database("poison"),
        broker_url=valkey.url(database=7),
        env=env,
    ) as made:
        yield made


@pytest.mark.parametrize(
    ("deed", "connector", "said"),
    [
        ("hold the lock", "numbers", "stood still"),
        ("hold the lock", "blocking-numbers", "stood still"),
        ("abort", "numbers", "Fatal Python error: Aborted"),
        ("grow at once", "numbers", "MiB"),
        ("exit", "numbers", "without a message"),
    ],
)
def test_a_feed_that_ends_its_worker_is_named_and_runs_apart_until_it_behaves(
    place: Neighbourhood, deed: Deed, connector: str, said: str
) -> None:
    place.heal()
    # Nor may one that ends each worker the moment it begins there be faster than the verdict.
    name = place.poison(deed, connector, harmless=0 if deed == "exit" else 10)
    untouched = {feed: row["blamed"] for feed in NEIGHBOURS for row in [place.lease(feed)]}
    outcome = place.do(name)
    assert 1 <= outcome.workers_lost <= 2
    assert outcome.silence_s < 30
    lease = place.lease(name)
    assert said in lease["blame"]
    assert place.events("feed_quarantined", name)
    if "still" in said or "Fatal" in said:
        assert "poison.py" in lease["blame"], "file and line"
    assert {feed: place.lease(feed)["blamed"] for feed in NEIGHBOURS} == untouched
    assert not any(place.lease(feed)["quarantined"] for feed in NEIGHBOURS)
    left = [worker for worker in WORKERS if place.cluster.workers[worker].is_running()]
    place.mend(name)
    assert [w for w in WORKERS if place.cluster.workers[w].is_running()] == left, "nobody else was lost"
    place.check_each_once()
    place.remove(name)


def test_a_feed_that_grows_is_let_go_of_before_its_worker_is_lost(place: Neighbourhood) -> None:
    place.heal()
    name = place.poison("grow")
    outcome = place.do(name)
    assert outcome.workers_lost == 0
    assert "grew" in place.lease(name)["blame"]
    place.mend(name)
    place.check_each_once()
    place.remove(name)


def test_a_worker_that_is_killed_by_somebody_puts_nobody_into_quarantine(place: Neighbourhood) -> None:
    place.heal()
    victim = place.cluster.workers["w2"]
    worker_id = place.cluster.worker_id(victim)
    victim.signal(signal.SIGKILL)
    place.wait_landing(NEIGHBOURS)
    wait_until(
        lambda: place.cluster.sql("SELECT loss FROM feedq.worker WHERE id = %s", (worker_id,))[0]["loss"],
        "the monitor says how it was lost",
    )
    assert not any(place.lease(feed)["quarantined"] for feed in NEIGHBOURS)
    place.check_each_once()


def owner_of(place: Neighbourhood, name: str) -> str | None:
    """The worker whose child has the lease of a feed and runs it."""
    found = place.cluster.sql(
        "SELECT w.name FROM feedq.feed f JOIN feedq.lease l ON l.feed_id = f.id "
        "JOIN feedq.worker w ON w.id = l.worker_id WHERE f.name = %s AND l.state = 'running' AND w.queue = ''",
        (name,),
    )
    return found[0]["name"].partition("@")[0] if found else None


def test_a_feed_with_a_process_of_its_own_is_moved_and_goes_elsewhere_when_its_worker_is_killed(
    place: Neighbourhood,
) -> None:
    place.heal()
    name = "own/01"
    place.cluster.apply([declared(name) | {"process": "own"}])
    place.wait_landing([name])
    here = owner_of(place, name)
    elsewhere = next(worker for worker in WORKERS if worker != here)
    place.cluster.feedq("feed", "move", name, "--to", elsewhere)
    wait_until(lambda: owner_of(place, name) == elsewhere, "it is moved")
    place.wait_landing([name])
    before = place.lease(name)
    place.cluster.workers[elsewhere].signal(signal.SIGKILL)
    wait_until(lambda: place.lease(name)["epoch"] > before["epoch"], "another has it")
    place.wait_landing([name, *NEIGHBOURS])
    assert not place.lease(name)["quarantined"]
    place.check_each_once()
    place.remove(name)
