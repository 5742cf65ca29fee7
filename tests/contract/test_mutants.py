"""Do the tests bite? The code that runs in production is broken in four ways, and the tests named must fail.

`tests/scenarios/test_mutants.py` does the same on paper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from feedq.control.store import passes
from feedq.control.store.leases import free_leases
from feedq.core import worker as core
from feedq.core.lease import TrustWindow
from feedq.sinks import statements
from tests.contract import test_sink_conformance
from tests.contract import test_store_passes as store_passes
from tests.contract import test_store_races as races
from tests.contract.harness import PostgresHarness
from tests.contract.sink_harness import PostgresSinkHarness
from tests.fakes import ManualClock, MemoryStore
from tests.lease_listener import RecordingListener
from tests.unit import test_lease_keeper as lease_keeper

sinks = test_sink_conformance.TestPostgresSink()


def without(sql: str, condition: str) -> str:
    assert condition in sql, f"the mutant has nothing to remove: {condition!r}"
    return sql.replace(condition, "true")


@pytest.fixture
def sink_harness(database_url: str) -> Any:
    made = PostgresSinkHarness(database_url)
    yield made
    made.close()


SinkTest = Callable[[PostgresSinkHarness], None]


@pytest.mark.parametrize("test", [sinks.test_a_stale_epoch_cannot_write_a_record_or_a_checkpoint])
def test_a_sink_without_the_epoch_in_its_checkpoint_update_fails(
    test: SinkTest, sink_harness: PostgresSinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCK_MINE", "ADVANCE"):
        mutant = without(getattr(statements, name), statements.EPOCH_MATCHES)
        monkeypatch.setattr(statements, name, mutant)
    with pytest.raises(AssertionError):
        test(sink_harness)


def test_a_sink_that_does_not_look_which_commit_it_continues_fails(
    sink_harness: PostgresSinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = without(statements.LOCK_MINE, statements.COMMIT_MATCHES)
    monkeypatch.setattr(statements, "LOCK_MINE", mutant)
    with pytest.raises(AssertionError):
        sinks.test_a_write_that_continues_another_commit_than_the_last_writes_nothing(sink_harness)


def test_a_sink_whose_fence_leaves_the_commit_that_was_there_fails(
    sink_harness: PostgresSinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = statements.FENCE.replace("commit_id = excluded.commit_id", "commit_id = c.commit_id")
    assert mutant != statements.FENCE
    monkeypatch.setattr(statements, "FENCE", mutant)
    with pytest.raises(AssertionError):
        sinks.test_a_fence_ends_what_was_to_be_continued_also_under_the_same_epoch(sink_harness)


@pytest.mark.parametrize(
    "test",
    [
        sinks.test_a_stale_epoch_cannot_write_a_record_or_a_checkpoint,
        sinks.test_unblocking_ends_the_zombies_transaction_and_it_can_write_nothing_more,
    ],
)
def test_a_sink_that_does_not_fence_on_start_fails(
    test: SinkTest, sink_harness: PostgresSinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = statements.FENCE.replace("epoch = excluded.epoch", "epoch = c.epoch")
    assert mutant != statements.FENCE
    monkeypatch.setattr(statements, "FENCE", mutant)
    with pytest.raises(AssertionError):
        test(sink_harness)


def test_a_keeper_whose_trust_is_anchored_at_the_reply_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    made = lease_keeper.make_lease_keeper(store, RecordingListener(), clock)

    class AnchoredAtTheReply(TrustWindow):
        @staticmethod
        def after_heartbeat(*, sent_at: float, ttl_s: float) -> TrustWindow:
            return TrustWindow.after_heartbeat(sent_at=clock.monotonic(), ttl_s=ttl_s)

    monkeypatch.setattr(core, "TrustWindow", AnchoredAtTheReply)
    with pytest.raises(AssertionError), monkeypatch.context() as inner:
        lease_keeper.test_a_slow_heartbeat_does_not_stretch_the_lease(made, store, clock, inner)


@pytest.mark.parametrize(
    "test",
    [
        store_passes.test_expiry_frees_the_leases_in_the_same_transaction,
        races.test_an_expiry_and_the_leases_it_frees_become_visible_together,
    ],
)
def test_a_store_that_buries_without_freeing_fails(
    test: Callable[[PostgresHarness], None],
    postgres_harness: PostgresHarness,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes, "free_leases", lambda *_, **__: 0)
    with pytest.raises(AssertionError):
        test(postgres_harness)


def test_a_store_that_frees_in_a_transaction_of_its_own_fails(
    postgres_harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:

    def in_another_transaction(_: object, *args: Any, **options: Any) -> int:
        with postgres_harness.store._database.transaction() as other:
            return free_leases(other, *args, **options)

    monkeypatch.setattr(passes, "free_leases", in_another_transaction)
    with pytest.raises(AssertionError):
        races.test_an_expiry_and_the_leases_it_frees_become_visible_together(postgres_harness)
