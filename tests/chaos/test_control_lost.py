"""The control database is lost and made anew while the sink lives: no checkpoint is taken over by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from feedq.local.postgres import Postgres
from tests.chaos import storm
from tests.chaos.conftest import Stages
from tests.chaos.test_sink_goes_back import landed, wait_landed
from tests.cluster import Cluster, feed, wait_until
from tests.source_process import Source

pytestmark = pytest.mark.timeout(180)

LATER, AT_ONCE = ("acme/a", "acme/b"), ("acme/c", "acme/d")
"""Feeds that are declared anew without and with ``--adopt``."""
EVER = (*LATER, *AT_ONCE)
NEW = "acme/0-new"
CONTROL = "control_lost"
MORE = 100


@contextmanager
def installation(
    directory: Path, *, control_url: str, broker_url: str, sink_url: str, **settings: str
) -> Iterator[Cluster]:
    directory.mkdir()
    env = {**storm.SETTINGS, "FEEDQ_SINKS__OWN": sink_url, **settings}
    with Cluster(directory, database_url=control_url, broker_url=broker_url, env=env) as cluster:
        cluster.add_beat("b1")
        cluster.add_worker("w1")
        yield cluster


@pytest.fixture
def control_url(postgres: Postgres, stages: Stages) -> Iterator[str]:
    stages.discard()  # it would take part of the machine
    yield postgres.create_database(CONTROL)
    postgres.drop_database(CONTROL)


def apply(cluster: Cluster, source: Source, *names: str, adopt: bool = False) -> str:
    feeds = [feed(name, source.url, sink="own") for name in names]
    file = cluster.directory / "feeds.json"
    file.write_text(json.dumps({"feeds": feeds}))
    return cluster.feedq("apply", "-f", str(file), *(["--adopt"] if adopt else []))


def id_of(cluster: Cluster) -> str:
    found: str = cluster.sql("SELECT id::text FROM feedq.installation")[0]["id"]
    return found


def wait_refused(cluster: Cluster, name: str, owner: str) -> None:
    """Wait until a feed has failed because its checkpoint is that of its namesake in another installation."""

    def says_whose() -> bool:
        said = cluster.leases()[name].last_error or ""
        return f"feed '{name}' of installation {owner}" in said and f"feedq feed adopt {name}" in said

    wait_until(says_whose, lambda: f"{name} says whose it is: {cluster.leases()[name]}")


def check_nothing_lost_or_doubled(sink_url: str) -> None:
    for name, (rows, different, last, first) in landed(sink_url).items():
        assert (name, first, rows - different, last - different) == (name, 1, 0, 0)


def test_feeds_of_a_control_database_that_was_made_anew_go_on_once_they_have_adopted(
    control_url: str, postgres: Postgres, tmp_path: Path, database_url: str, broker_url: str
) -> None:
    """Its processes run all the while. A feed that was never there begins at the beginning."""
    sink_url = database_url
    with (
        Source(rate=50) as source,
        installation(
            tmp_path / "one", control_url=control_url, broker_url=broker_url, sink_url=sink_url
        ) as cluster,
    ):
        apply(cluster, source, *EVER)
        wait_landed(sink_url, EVER, 30)
        lost = id_of(cluster)
        postgres.drop_database(CONTROL)
        postgres.create_database(CONTROL)
        cluster.feedq("db", "upgrade")

        assert apply(cluster, source, NEW, *LATER).count("--adopt continues from its cursor") == len(LATER)
        for name in LATER:
            wait_refused(cluster, name, lost)
        stood = landed(sink_url)
        wait_landed(sink_url, (NEW,), MORE)
        now = landed(sink_url)
        assert {name: now[name] for name in EVER} == {name: stood[name] for name in EVER}

        for name in LATER:
            cluster.feedq("feed", "adopt", name, "--yes")
        assert apply(cluster, source, NEW, *EVER, adopt=True).count(": adopted") == len(AT_ONCE)
        wait_landed(sink_url, EVER, max(stood[name][2] for name in EVER) + MORE)
        check_nothing_lost_or_doubled(sink_url)
        assert not source.overlaps()
