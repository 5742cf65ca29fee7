"""Text that no database can hold, from the code of others: it is made fit, and harms nobody else's reports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from feedq.control.store.postgresql import PostgresStore
from tests import poison
from tests.cluster import ROOT, Cluster, Place, wait_until
from tests.isolation import LANDED, declared
from tests.schedules import never

FIT = "half a pair \ufffd and a NUL \ufffd in it"
STATES = """
    SELECT s.name, r.state, r.reason FROM feedq.run r JOIN feedq.schedule s ON s.id = r.schedule_id ORDER BY s.name
"""


@pytest.fixture(scope="module")
def cluster(place: Place) -> Iterator[Cluster]:
    poison.install(place.directory)
    env = {"FEEDQ_IMPORTS": "tests.jobs_under_test", "PYTHONPATH": f"{place.directory}:{ROOT}"}
    with place.cluster(env=env) as made:
        made.make(LANDED)
        made.add_beat("b1")
        made.add_worker("w1")
        yield made


def test_a_job_that_raises_what_cannot_be_stored_has_failed_and_says_so(cluster: Cluster) -> None:
    store = PostgresStore(cluster.database_url)
    for name, task in (("fine", "tests.fail"), ("garbled", "tests.garble")):
        store.jobs.schedules.add(never(name, task=task))
        store.jobs.schedules.trigger(name)
    store.close()
    wait_until(
        lambda: {row["state"] for row in cluster.sql(STATES)} == {"failed"},
        limit_s=30,
        what=lambda: f"both have failed: {cluster.sql(STATES)}",
    )
    assert cluster.sql(STATES)[1]["reason"] == f"ValueError: {FIT}"


def test_a_source_that_says_what_cannot_be_stored_keeps_no_others_report_back(cluster: Cluster) -> None:
    flag = cluster.directory / "flag"
    flag.touch()
    garbled = {"then": "garble", "while_exists": str(flag), "harmless": 1}
    cluster.apply([declared("fine"), declared("garbled", options=garbled)])
    wait_until(
        lambda: cluster.leases()["garbled"].last_error == FIT,
        limit_s=30,
        what=lambda: f"the error of garbled is told: {cluster.leases()['garbled']}",
    )
    told = cluster.leases()["fine"].records_total
    wait_until(
        lambda: cluster.leases()["fine"].records_total > told,
        limit_s=30,
        what=lambda: f"fine is reported: {cluster.leases()['fine']}",
    )
