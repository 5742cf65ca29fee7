"""The elected beat's looks: planned once for its session, unless what is in between mixes sessions up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple
from uuid import uuid4

import pytest

from feedq.control.store.channels import LEADER_LOCK_CLASS, WAKE
from feedq.control.store.database import PreparedStatement
from feedq.control.store.election import BEAT_ELECTION, Election
from feedq.control.store.worker_session import Listener
from tests.contract.harness import TTL_S, PostgresHarness

pytestmark = pytest.mark.servers

SETTLE_S = 3600.0


@pytest.fixture
def plain(postgres_harness: PostgresHarness) -> Iterator[Election]:
    """It has not won: what it asks is planned each time."""
    with closing(candidate(postgres_harness)) as made:
        yield made


@pytest.fixture
def elected(postgres_harness: PostgresHarness) -> Iterator[Election]:
    with closing(candidate(postgres_harness)) as made:
        assert made.campaign()
        yield made


@pytest.fixture(params=["plain", "elected"])
def looking(request: pytest.FixtureRequest) -> Election:
    election: Election = request.getfixturevalue(request.param)
    return election


def candidate(harness: PostgresHarness) -> Election:
    return Election(harness.url, holder=uuid4(), host="host", pid=1, ttl_s=TTL_S, settle_s=SETTLE_S)


def asked_last(harness: PostgresHarness, election: Election) -> object:
    """The first word of what its session sent last."""
    sql = "SELECT split_part(btrim(query, E' \\n'), ' ', 1) FROM pg_stat_activity WHERE pid = %s"
    ((word,),) = harness.execute(sql, election._session.backend_pid)
    return word


def test_what_the_elected_one_asks_all_the_time_is_planned_once(
    postgres_harness: PostgresHarness, plain: Election, elected: Election
) -> None:
    for election in (plain, elected):
        election.check_liveness()
    assert asked_last(postgres_harness, plain) == "WITH"
    assert asked_last(postgres_harness, elected) == "EXECUTE"


def test_looks_find_the_same_however_they_are_planned(
    postgres_harness: PostgresHarness, looking: Election
) -> None:
    harness = postgres_harness
    assert astuple(looking.check_liveness())[:4] == (0, 0, 0, 0)
    # Planned while there was nothing; what comes later is found all the same.
    crashed, late = harness.worker("a"), harness.worker("b")
    harness.store.session(crashed, ttl_s=TTL_S).close()
    harness.await_unlocked(crashed)
    kept = harness.store.session(late, ttl_s=TTL_S)
    harness.execute("UPDATE feedq.worker SET expires_at = clock_timestamp() WHERE id = %s", str(late.id))
    first, second = looking.check_liveness(), looking.check_liveness()
    assert (first.crashed, first.suspected, first.expired) == (0, 1, 1)
    assert (second.crashed, second.suspected, second.expired) == (1, 0, 1)
    kept.close()


def test_a_thousand_workers_are_looked_over_though_it_was_planned_for_none(
    postgres_harness: PostgresHarness, elected: Election
) -> None:
    harness = postgres_harness
    elected.check_liveness()
    harness.execute(
        "INSERT INTO feedq.worker (id, name, queue, capacity, host, pid, version, session_locks, expires_at) "
        "SELECT gen_random_uuid(), 'w' || n, 'queue', 1, 'host', 1, '0', true, now() + interval '1 h' "
        "FROM generate_series(1, 1000) n"
    )
    assert elected.check_liveness().suspected == 1_000
    assert elected.check_liveness().crashed == 1_000


def test_without_its_lock_a_session_prepares_nothing(postgres_harness: PostgresHarness) -> None:
    # So it is behind a pooler, which gives each statement to whichever backend is free.
    name, number = BEAT_ELECTION
    with closing(Listener(postgres_harness.url, WAKE, application_name=f"feedq-{name}")) as session:
        prepare = PreparedStatement.of("something", "SELECT 1", {})
        assert not session.prepare(prepare, lock_class=LEADER_LOCK_CLASS, key=number)
        assert session.execute("SELECT name FROM pg_prepared_statements") == []
        session.execute("SELECT pg_advisory_lock(%s, %s)", (LEADER_LOCK_CLASS, number))
        assert session.prepare(prepare, lock_class=LEADER_LOCK_CLASS, key=number)
        assert session.execute("EXECUTE something") == [(1,)]
