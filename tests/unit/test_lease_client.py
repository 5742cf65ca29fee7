"""The lease client and the claim queue: every message is answered, whatever becomes of its claim."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID, uuid4

import pytest

from feedq.errors import Unavailable
from feedq.model import Claim, FeedKey, FeedSpec, LeaseState, NewWorker, Reason, Release
from feedq.runtime.claim_queue import ClaimQueue, Granted, TaskCallbacks
from feedq.runtime.external_pool import ExternalPool
from feedq.runtime.lease_client import LeaseClient
from tests.fakes import ManualClock, MemoryStore

LIMIT_S = 10.0


class Office:
    """A lease client and a claim queue over a store in memory, with what came out of them."""

    def __init__(self) -> None:
        self.store = MemoryStore(ManualClock())
        self.worker = self.store.workers.register(
            NewWorker(uuid4(), "w1", "node.w1", 10, "host", 1, "0"), ttl_s=6
        )
        self.begun: list[tuple[UUID, FeedKey]] = []
        self.said: list[str] = []
        self.lost: list[FeedKey] = []
        self.doubts: list[UUID] = []
        self.claim_queue = ClaimQueue(
            refusal=lambda key, pending: None,
            claim=lambda key: self.lease_client.claim(self.worker.id, key),
            begin=self._begin,
        )
        self.lease_client = LeaseClient(
            self.store,
            on_claimed=self.claim_queue.answered,
            on_lost=self.lost.extend,
            on_doubt=self.doubts.append,
        )

    def assigned(self, name: str = "a") -> FeedKey:
        feed = self.store.feeds.add(FeedSpec(name, "tcp", {}, {}))
        with self.store.fleet.reconcile_pass() as p:
            assert p is not None
            (given,) = p.assign([(feed.id, self.worker.id)])
        return given.key

    def offer(self, key: FeedKey) -> None:
        self.claim_queue.offer(
            key, TaskCallbacks(lambda: self.said.append("accepted"), self.said.append, lambda text: None)
        )

    def _begin(self, worker_id: UUID, starting: Granted) -> None:
        self.begun += [(worker_id, claim.key) for claim, _ in starting]


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    made.lease_client.start()
    yield made
    made.lease_client.stop(timeout_s=LIMIT_S)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def test_a_granted_claim_begins_under_the_session_that_asked(office: Office) -> None:
    key = office.assigned()
    office.offer(key)
    until(lambda: office.begun, "begun")
    assert office.begun == [(office.worker.id, key)]
    assert office.said == ["accepted"]
    assert (office.claim_queue.pending, office.doubts) == (0, [])


def test_a_stale_message_is_answered_and_raises_no_doubt(office: Office) -> None:
    office.offer((7, 7))
    until(lambda: len(office.said) == 2, "answered")
    assert office.said[0] == "accepted"
    assert "stale" in office.said[1]
    assert (office.begun, office.doubts) == ([], [])


def test_claims_that_fail_for_good_are_answered_and_not_kept_pending(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[Claim]:
        raise ValueError("for the test")

    key = office.assigned()
    with monkeypatch.context() as failing:
        failing.setattr(office.store.leases, "claim", broken)
        office.offer(key)
        until(lambda: len(office.said) == 2, "answered")
    assert office.claim_queue.pending == 0
    until(lambda: office.doubts == [office.worker.id], "it may have been claimed all the same")


def test_a_claim_whose_answer_was_lost_raises_a_doubt(office: Office) -> None:
    key = office.assigned()
    office.store.lose_answers(1)
    office.offer(key)
    until(lambda: office.doubts, "a doubt")
    assert office.begun == [], "the second try cannot tell its own lease from somebody else's"
    assert office.store.database.tables.leases[key[0]].state is LeaseState.RUNNING
    assert office.claim_queue.pending == 0


def test_a_claim_that_waited_for_the_database_raises_no_doubt(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = office.assigned()
    real, tries = office.store.leases.claim, list[int]()

    def claim(worker_id: UUID, keys: Sequence[FeedKey]) -> list[Claim]:
        tries.append(len(keys))
        return real(worker_id, keys)

    monkeypatch.setattr(office.store.leases, "claim", claim)
    office.store.go_away()
    office.offer(key)
    until(lambda: tries, "asked in vain")
    office.store.come_back()
    until(lambda: office.begun, "begun")
    assert office.doubts == []


def test_an_error_in_what_hears_of_claims_does_not_end_the_desk(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = office.assigned()
    with monkeypatch.context() as failing:
        failing.setattr(office, "_begin", None)
        failing.setattr(office.claim_queue, "_begin", None)
        office.offer(key)
        until(lambda: office.doubts, "a doubt")
    other = office.assigned("b")
    office.offer(other)
    until(lambda: office.begun, "begun")
    assert office.begun == [(office.worker.id, other)]


def test_a_desk_that_closes_does_not_wait_for_a_database_that_is_away() -> None:
    office = Office()
    office.store.go_away()
    office.lease_client.start()
    for feed_id in range(100):
        office.lease_client.release(office.worker.id, Release(feed_id, 1, Reason.RELEASED))
        office.lease_client.do(lambda: office.store.workers.leave(office.worker.id))
    began = time.monotonic()
    office.lease_client.stop(timeout_s=LIMIT_S)
    assert time.monotonic() - began < LIMIT_S / 2
    assert not office.lease_client._thread.is_alive()


# -- tenures beside the supervisor -------------------------------------------------------------------


def test_a_lease_whose_tenure_ended_without_letting_go_is_released(office: Office) -> None:
    key, other = office.assigned("a"), office.assigned("b")
    office.store.leases.claim(office.worker.id, [key, other])
    running = {key[0], other[0]}
    beside = ExternalPool(office.store, office.lease_client, lambda: running, clock=office.store.clock)
    leases = office.store.database.tables.leases
    answered: list[bool] = []

    def look() -> None:
        beside.audit(office.worker.id)
        answered.clear()
        office.lease_client.do(lambda: answered.append(True))
        until(lambda: answered, "looked")

    look()
    look()
    assert leases[key[0]].state is LeaseState.RUNNING
    running.discard(key[0])  # its process was killed, say
    look()
    assert leases[key[0]].state is LeaseState.RUNNING, "one look may see half of a release"
    look()
    until(lambda: leases[key[0]].state is LeaseState.IDLE, "released")
    assert leases[other[0]].state is LeaseState.RUNNING


def test_waiting_for_tenures_ends_when_the_database_is_away(office: Office) -> None:
    key = office.assigned()
    office.store.leases.claim(office.worker.id, [key])
    beside = ExternalPool(office.store, office.lease_client, set, clock=office.store.clock)
    office.store.go_away()
    with pytest.raises(Unavailable):
        office.store.leases.held(office.worker.id)
    beside.await_end(office.worker.id, timeout_s=3600)
