"""Sessions of the elected beat that wait for the end of workers' sessions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import astuple
from threading import Thread
from uuid import UUID, uuid4

import pytest

from feedq.control.store.election import BEAT_ELECTION, WAITER_NAME, Election, LivenessCheck
from feedq.control.store.session_ends import SNAPSHOT_S
from feedq.control.store.worker_session import LEADER_LOCK_CLASS, WAKE, Listener
from feedq.core.model import Worker
from tests.contract.harness import TTL_S, Harness
from tests.waiting import until

LIMIT_S = 30.0

HOLDER = UUID(int=7)
ENDED = "the server has ended the session of the beat of the test before"


def candidate(harness: Harness, *, waiters: int = 4, holder: UUID = HOLDER) -> Election:
    return Election(
        harness.url,
        holder=holder,
        host="host",
        pid=1,
        ttl_s=TTL_S,
        settle_s=0.0,
        waiters=waiters,
        rearm_s=0.01,
    )


@pytest.fixture
def elected(harness: Harness) -> Iterator[Election]:
    with closing(candidate(harness)) as made:
        until(made.campaign, ENDED)
        yield made


@pytest.fixture
def closing_all() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def has_session(harness: Harness, worker: Worker, stack: ExitStack) -> int:
    """Open a session of the worker; returns its backend."""
    session = stack.enter_context(closing(harness.store.session(worker, ttl_s=TTL_S)))
    return int(session._session.info.backend_pid)


def look_until(election: Election, awaited: bool) -> LivenessCheck:
    """Look until the end of every worker is waited for, or not so."""
    deadline = time.monotonic() + LIMIT_S
    while (check := election.check_liveness()).is_awaited is not awaited:
        assert time.monotonic() < deadline, f"awaited: {check.is_awaited}"
        election.wait(0.01)
    return check


def hears(election: Election) -> LivenessCheck:
    """Wait until something is heard; the look that follows."""
    # The server's farewell may come before the end of the connection.
    for _ in range(3):
        election.wait(LIMIT_S)
        if (check := election.check_liveness()).has_heard:
            return check
    raise AssertionError("nothing was heard")


def waiters(harness: Harness, holder: UUID = HOLDER) -> list[tuple[object, ...]]:
    sql = "SELECT pid, backend_start FROM pg_stat_activity WHERE application_name = %s ORDER BY pid"
    return harness.execute(sql, f"{WAITER_NAME}/{holder}")


def end(harness: Harness, *backends: object) -> None:
    harness.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS t (pid)", list(backends))


def test_the_end_of_a_workers_last_session_is_heard_without_a_look(
    harness: Harness, elected: Election, closing_all: ExitStack
) -> None:
    worker = harness.worker()
    lease_keeper = has_session(harness, worker, closing_all)
    listener = closing_all.enter_context(closing(harness.store.worker_listener(worker)))
    look_until(elected, awaited=True)
    end(harness, lease_keeper, listener.backend_pid)
    assert hears(elected).suspected == 1


def test_while_a_worker_has_another_session_nothing_is_heard(
    harness: Harness, elected: Election, closing_all: ExitStack
) -> None:
    worker = harness.worker()
    first = has_session(harness, worker, closing_all)
    listener = closing_all.enter_context(closing(harness.store.worker_listener(worker)))
    look_until(elected, awaited=True)
    end(harness, first)
    began = time.monotonic()
    assert not elected.wait(2 * SNAPSHOT_S)
    assert time.monotonic() >= began + 2 * SNAPSHOT_S, "it was woken"
    assert not elected.check_liveness().has_heard
    end(harness, listener.backend_pid)
    assert hears(elected).suspected == 1


def test_a_worker_that_comes_back_while_its_old_session_is_waited_for_need_not_wait(
    harness: Harness, elected: Election, closing_all: ExitStack
) -> None:
    worker = harness.worker()
    old = has_session(harness, worker, closing_all)
    look_until(elected, awaited=True)
    # Both sessions for a moment, as after a broken network of which the server does not know.
    new = has_session(harness, worker, closing_all)
    end(harness, old)
    check = hears(elected)
    assert (check.suspected, check.crashed) == (0, 0)
    look_until(elected, awaited=True)
    end(harness, new)
    assert hears(elected).suspected == 1


def test_a_waiter_that_is_ended_is_missed_and_replaced(
    harness: Harness, elected: Election, closing_all: ExitStack
) -> None:
    has_session(harness, harness.worker(), closing_all)
    look_until(elected, awaited=True)
    ((waiter, started),) = waiters(harness)
    end(harness, waiter)
    assert hears(elected).suspected == 0
    look_until(elected, awaited=True)
    ((_, started_then),) = waiters(harness)
    assert started_then != started


def test_for_more_workers_than_waiters_it_looks(harness: Harness, closing_all: ExitStack) -> None:
    with closing(candidate(harness, waiters=1)) as election:
        until(election.campaign, ENDED)
        has_session(harness, harness.worker("a"), closing_all)
        look_until(election, awaited=True)
        second = harness.worker("b")
        has_session(harness, second, closing_all)
        look_until(election, awaited=False)
        election.wait(0.05)
        assert not election.check_liveness().is_awaited
        harness.store.workers.leave(second.id)
        look_until(election, awaited=True)


def test_a_wait_lets_go_of_its_snapshot(harness: Harness, elected: Election, closing_all: ExitStack) -> None:
    """Otherwise no row that was replaced since it began could be cleared away."""
    has_session(harness, harness.worker(), closing_all)
    look_until(elected, awaited=True)
    ((waiter, _),) = waiters(harness)
    seen: set[object] = set()
    deadline = time.monotonic() + LIMIT_S
    while len(seen) < 3:
        assert time.monotonic() < deadline, "it keeps the same transaction"
        ((since,),) = harness.execute("SELECT xact_start FROM pg_stat_activity WHERE pid = %s", waiter)
        seen.add(since)
        time.sleep(SNAPSHOT_S / 4)  # it is asked for nothing else
    assert not elected.wait(0)
    assert not elected.check_liveness().has_heard, "and waits on"


def test_the_waiters_of_a_frozen_beat_end_with_its_lead(
    harness: Harness, elected: Election, closing_all: ExitStack
) -> None:
    has_session(harness, harness.worker(), closing_all)
    look_until(elected, awaited=True)
    assert len(waiters(harness)) == 1
    harness.execute("UPDATE feedq.leader SET expires_at = clock_timestamp() - interval '1 s'")
    with closing(candidate(harness, holder=uuid4())) as other:
        assert other.end_frozen_leader()
    until(lambda: not waiters(harness), "the server has ended it")


def test_waiters_end_with_their_beat(harness: Harness, closing_all: ExitStack) -> None:
    has_session(harness, harness.worker(), closing_all)
    with closing(candidate(harness)) as election:
        until(election.campaign, ENDED)
        look_until(election, awaited=True)
        assert len(waiters(harness)) == 1
    until(lambda: not waiters(harness), "the server has noticed")


def test_a_look_says_when_the_next_thing_falls_due(harness: Harness, elected: Election) -> None:
    assert elected.check_liveness().due_in_s is None
    harness.worker(ttl_s=500.0)
    due_in_s = elected.check_liveness().due_in_s
    assert due_in_s is not None
    assert 490 < due_in_s <= 500
    feed = harness.feed()
    harness.execute(
        "UPDATE feedq.lease SET due_at = clock_timestamp() + interval '100 s' WHERE feed_id = %s", feed.id
    )
    due_in_s = elected.check_liveness().due_in_s
    assert due_in_s is not None
    assert 90 < due_in_s <= 100


def test_a_beat_that_stands_by_is_elected_as_soon_as_the_leader_is_gone(
    harness: Harness, elected: Election
) -> None:
    assert elected.renew()
    with closing(candidate(harness, holder=UUID(int=8))) as other:

        def stand_by() -> None:
            while not other.campaign():
                other.stand_by(0.05)

        standing_by = Thread(target=stand_by)
        standing_by.start()
        until(lambda: waiters(harness, UUID(int=8)), "it waits at the server")
        end(harness, elected._session.backend_pid)
        standing_by.join(LIMIT_S)
        assert not standing_by.is_alive(), "it waits until the row expires"
        assert waiters(harness, UUID(int=8)) == [], "and has nothing to stand by for"


def test_a_beat_that_stands_by_looks_again_when_the_leaders_row_has_expired(
    harness: Harness, elected: Election
) -> None:
    with closing(candidate(harness, holder=UUID(int=8))) as other:
        expire_soon = "UPDATE feedq.leader SET expires_at = clock_timestamp() + interval '0.3 s'"
        deadline = time.monotonic() + LIMIT_S
        while not other._vacancy.is_complete:
            assert time.monotonic() < deadline
            harness.execute(expire_soon)  # or the call that completes it waits for the whole term
            other.stand_by(0.01)
        harness.execute(expire_soon)
        other.stand_by(0.01)
        assert other.end_frozen_leader()


def test_looks_find_what_came_after_they_were_planned(harness: Harness, elected: Election) -> None:
    assert astuple(elected.check_liveness())[:3] == (0, 0, 0)
    # Planned while there was nothing; what comes later is found all the same.
    crashed, late = harness.worker("a"), harness.worker("b")
    harness.store.session(crashed, ttl_s=TTL_S).close()
    harness.await_unlocked(crashed)
    kept = harness.store.session(late, ttl_s=TTL_S)
    harness.execute("UPDATE feedq.worker SET expires_at = clock_timestamp() WHERE id = %s", str(late.id))
    first, second = elected.check_liveness(), elected.check_liveness()
    assert (first.crashed, first.suspected, first.expired) == (0, 1, 1)
    assert (second.crashed, second.suspected, second.expired) == (1, 0, 1)
    kept.close()


def test_a_thousand_workers_are_looked_over_though_it_was_planned_for_none(
    harness: Harness, elected: Election
) -> None:
    elected.check_liveness()
    harness.execute(
        "INSERT INTO feedq.worker (id, name, queue, capacity, host, pid, version, session_locks, expires_at) "
        "SELECT gen_random_uuid(), 'w' || n, 'queue', 1, 'host', 1, '0', true, now() + interval '1 h' "
        "FROM generate_series(1, 1000) n"
    )
    assert elected.check_liveness().suspected == 1_000
    assert elected.check_liveness().crashed == 1_000


def test_a_session_tells_whether_it_has_its_lock(harness: Harness) -> None:
    # Behind a pooler it has not: that gives each statement to whichever backend is free.
    name, number = BEAT_ELECTION
    with closing(Listener(harness.url, WAKE, application_name=f"feedq-{name}")) as session:
        assert not session.holds(LEADER_LOCK_CLASS, number)
        session.execute(f"SELECT pg_advisory_lock({LEADER_LOCK_CLASS}, {number})")
        assert session.holds(LEADER_LOCK_CLASS, number)
