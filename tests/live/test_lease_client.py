"""The lease client: every claim is answered, whatever becomes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from random import Random
from uuid import UUID, uuid4

import pytest

from feedq.core.model import Claim, FeedKey, FeedSpec, LeaseState, NewWorker, Reason, Release
from feedq.core.worker import WorkerCore
from feedq.settings import Settings
from feedq.worker.lease_client import LeaseClient
from feedq.worker.lease_keeper import CoreDriver
from tests.fakes.control import current
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("control")

LIMIT_S = 30.0


class Office:
    """A lease client over a store in memory, with what came out of it."""

    def __init__(self) -> None:
        self.store = current().fresh_store()
        self.worker = self.store.workers.register(
            NewWorker(uuid4(), "w1", "node.w1", 10, "host", 1, "0"), ttl_s=6
        )
        self.begun: list[tuple[UUID, FeedKey]] = []
        self.refused: list[FeedKey] = []
        self.lost: list[FeedKey] = []
        self.unsure: list[UUID] = []
        self.failures: list[Exception] = []
        """What hears of claims raises these first."""
        core = WorkerCore(Settings(), rng=Random(1), now=time.monotonic())
        self.lease_client = LeaseClient(
            self.store,
            CoreDriver(core, lambda _: None),
            on_claimed=self._claimed,
            on_lost=self.lost.extend,
            on_heard=lambda _: None,
        )

    def assigned(self, name: str = "a") -> FeedKey:
        feed = self.store.feeds.add(FeedSpec(name=name, connector="tcp", source={}, sink={}))
        with self.store.fleet.reconcile_pass() as p:
            assert p is not None
            (given,) = p.assign([(feed.id, self.worker.id)])
        return given.key

    def claim(self, key: FeedKey) -> None:
        self.lease_client.claim(self.worker.id, [key])

    def _claimed(self, worker_id: UUID, granted: list[Claim], refused: list[FeedKey], sure: bool) -> None:
        if self.failures:
            raise self.failures.pop()
        self.begun += [(worker_id, claim.key) for claim in granted]
        self.refused += refused
        self.unsure += [] if sure else [worker_id]


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    made.lease_client.start()
    yield made
    made.lease_client.stop(timeout_s=LIMIT_S)


def test_a_granted_claim_begins_under_the_session_that_asked(office: Office) -> None:
    key = office.assigned()
    office.claim(key)
    until(lambda: office.begun, "begun")
    assert office.begun == [(office.worker.id, key)]
    assert (office.refused, office.unsure) == ([], [])


def test_claims_that_fail_for_good_are_answered_and_not_kept_pending(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[Claim]:
        raise ValueError("for the test")

    key = office.assigned()
    with monkeypatch.context() as failing:
        failing.setattr(office.store.leases, "claim", broken)
        office.claim(key)
        until(lambda: office.refused == [key], "answered")
    assert office.unsure == [office.worker.id], "it may have been claimed all the same"


def test_a_claim_whose_answer_was_lost_raises_a_doubt(office: Office) -> None:
    key = office.assigned()
    office.store.control.answers_to_lose = 1
    office.claim(key)
    until(lambda: office.unsure, "a doubt")
    assert office.begun == [], "the second try cannot tell its own lease from somebody else's"
    assert [lease.state for lease in office.store.control.leases()] == [LeaseState.RUNNING]
    assert office.refused == [key]


def test_a_claim_that_waited_for_the_database_raises_no_doubt(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = office.assigned()
    real, tries = office.store.leases.claim, list[int]()

    def claim(worker_id: UUID, keys: Sequence[FeedKey]) -> list[Claim]:
        tries.append(len(keys))
        return real(worker_id, keys)

    monkeypatch.setattr(office.store.leases, "claim", claim)
    office.store.control.is_away = True
    office.claim(key)
    until(lambda: tries, "asked in vain")
    office.store.control.is_away = False
    until(lambda: office.begun, "begun")
    assert office.unsure == []


def test_a_client_that_closes_does_not_wait_for_a_database_that_is_away() -> None:
    office = Office()
    office.store.control.is_away = True
    office.lease_client.start()
    for feed_id in range(100):
        office.lease_client.release(office.worker.id, [Release(feed_id, 1, Reason.RELEASED)])
        office.lease_client.do(lambda: office.store.workers.leave(office.worker.id))
    began = time.monotonic()
    office.lease_client.stop(timeout_s=LIMIT_S)
    assert time.monotonic() - began < LIMIT_S / 2
    assert not office.lease_client._thread.is_alive()
