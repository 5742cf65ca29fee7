"""Does the simulation bite? The protocol is broken in one place, and few seeds must find it.

Nobody has thought of a story here. A rule that another one makes up for, only later, is not found this way: leases
that are never compared with what runs are released when the feed is to move, or reaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest

from feedq.control.store.database import Connection
from feedq.control.store.jobs import firing
from feedq.control.store.jobs.firing import Decided
from feedq.control.store.passes import ReconcilePass
from feedq.control.store.protocol import call, document
from feedq.core.model import FeedKey
from feedq.core.schedule.model import NewRun
from feedq.core.schedule.spec import NOT_OF_JOB
from feedq.core.worker import WorkerCore, WorkerFeed
from feedq.core.worker_actions import Action, Suspend
from tests.fakes import FakeSink, FakeWorker
from tests.fakes.control import ControlDatabase
from tests.fakes.servers import FakeCheckpoint
from tests.fakes.stream import FakeStream
from tests.mutants.listed import both_sides
from tests.simulation.trouble import RUN_STORIES, run_seed

pytestmark = pytest.mark.usefixtures("control")

SEEDS = 60
WRITE = firing.write

Mutate = Callable[[pytest.MonkeyPatch], None]


def no_epoch_in_the_checkpoint_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def admit_anybody(self: FakeSink, seen: FakeCheckpoint, epoch: int, continues: int) -> bool:
        return True

    monkeypatch.setattr(FakeSink, "is_as_left", admit_anybody)


def no_fence_on_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The successor reads the cursor and leaves the epoch alone; its first write will raise it."""

    def only_read(self: FakeSink, key: FeedKey, owner: UUID) -> FakeCheckpoint | None:
        seen = self.checkpoints.setdefault(key[0], FakeCheckpoint())
        return seen if seen.epoch < key[1] else None

    def write(self: FakeSink, key: FeedKey, continues: int, records: Sequence[int]) -> int | None:
        if self.checkpoints[key[0]].epoch > key[1]:
            return None
        self.rows.setdefault(key[0], []).extend(records)
        self.checkpoints[key[0]] = FakeCheckpoint(key[1], records[-1])
        return 0

    monkeypatch.setattr(FakeSink, "fence", only_read)
    monkeypatch.setattr(FakeSink, "write", write)


def trust_window_anchored_at_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stretched(WorkerCore):
        def confirmed(self, *, sent_at: float, ttl_s: float, now: float) -> list[Action]:
            return super().confirmed(sent_at=now, ttl_s=ttl_s, now=now)

    monkeypatch.setattr(FakeWorker, "core_type", Stretched)


def no_commit_in_the_checkpoint_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_epoch(self: FakeSink, seen: FakeCheckpoint, epoch: int, continues: int) -> bool:
        return seen.epoch <= epoch

    monkeypatch.setattr(FakeSink, "is_as_left", only_the_epoch)


def an_unknown_commit_counts_as_not_landed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSink, "has_landed", lambda *_: False)
    no_commit_in_the_checkpoint_update(monkeypatch)


def an_unknown_commit_counts_as_landed(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(self: FakeStream, sink: FakeSink) -> None:
        if self.unknown is not None:
            self.cursor = self.unknown[1][-1]
            self.continues = sink.checkpoint(self.key[0]).commit
            self.unknown = None

    monkeypatch.setattr(FakeStream, "settle", settle)


def a_pass_says_gone_before_it_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a transaction of its own: found where the beat dies between the two."""

    def expire_workers(self: ReconcilePass, worker_ids: Sequence[UUID]) -> int:
        gone = "UPDATE feedq.worker SET state = 'gone' WHERE id = ANY (%(ids)s)"
        self._c.execute(gone, {"ids": list(worker_ids)})
        self._c.session.commit()
        states = ["assigned", "running", "stopping"]
        return call(self._c, "free", int, owners=list(worker_ids), states=states, because="worker_gone")

    monkeypatch.setattr(ReconcilePass, "expire_workers", expire_workers)


def core(monkeypatch: pytest.MonkeyPatch, **methods: Any) -> None:
    """Have workers run on a core with these methods."""
    monkeypatch.setattr(FakeWorker, "core_type", type("Mutant", (WorkerCore,), methods))


def a_lost_session_loses_no_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_session(self: Any, now: float) -> list[Action]:
        return [a for a in WorkerCore._end_session(self, now) if isinstance(a, Suspend)]

    core(monkeypatch, _end_session=end_session)


def nothing_suspends(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_doubt(self: Any, why: str, now: float) -> list[Action]:
        return []

    core(monkeypatch, _end_trust=no_doubt, is_trusted=lambda self, now: True)


def a_refused_report_loses_no_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: Any, feeds: Sequence[WorkerFeed], now: float) -> list[Action]:
        return []

    core(monkeypatch, _lose=lose)


def only_messages_bring_assignments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found where the broker hangs on when all else is well again, and nowhere else."""

    def none(self: Any, worker_id: UUID, keys: Iterable[FeedKey]) -> list[Action]:
        return []

    core(monkeypatch, assignments_found=none)


def the_watermark_moves_before_there_are_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a transaction of its own: found where whoever fires dies between the two."""

    def write(c: Connection, decided: list[Decided], runs: list[NewRun]) -> int:
        WRITE(c, decided, [])
        c.session.commit()
        given = {"runs": document(runs), "not_of_job": list(NOT_OF_JOB)}
        return int(call(c, "make_runs", dict[str, Any], job=None, **given)["due"])

    monkeypatch.setattr(firing, "write", write)


@pytest.mark.parametrize(
    ("mutate", "known"),
    [
        (no_epoch_in_the_checkpoint_update, 0),
        (no_fence_on_start, 41),
        (trust_window_anchored_at_the_reply, 0),
        (no_commit_in_the_checkpoint_update, 0),
        (an_unknown_commit_counts_as_not_landed, 0),
        (an_unknown_commit_counts_as_landed, 5),
        (a_lost_session_loses_no_feed, 0),
        (nothing_suspends, 0),
        (a_refused_report_loses_no_feed, 0),
        (only_messages_bring_assignments, 1),
        (a_pass_says_gone_before_it_frees, 12),
        (the_watermark_moves_before_there_are_runs, 249),
    ],
)
def test_few_seeds_find_code_that_breaks_the_protocol(
    mutate: Mutate, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert_few_seeds_find_it(known)


IN_STATEMENTS = {
    "gone without freeing": (
        "RETURN [-feedq_1.free(workers, '{assigned,running,stopping}', 'worker_gone')-]{+0+};",
        0,
    ),
    "revoked before it is placed": ("[-promised_to = coalesce(held.target, l.promised_to),-]", 0),
    "a promise is not counted": ("coalesce(n.feeds, 0)[- + coalesce(s.feeds, 0)-], 0) AS feeds", 65),
    "waited for without end": ("WHERE [-state = 'stopping' AND due_at <= feedq.clock()-]{+false+} ORDER", 0),
    "assigned under the epoch that it had": ("state = 'assigned', epoch = l.epoch[- + 1-],", 0),
    "done again that may run once": (
        "[-r.job ->> 'semantics' IN ('at_least_once', 'transactional')-]{+true+}",
        9,
    ),
    "a turn that nobody has": ("IF [-NOT FOUND OR -]has.state = 'waiting' AND has.due_at > at", 289),
    "a fence for all attempts": (
        "reason = NULL, fence = [-nextval('feedq.run_fence')-]{+greatest(r.fence, 1)+}",
        14,
    ),
    "taken from the living": ("WHERE [-w.id = session-]{+false+} AND (w.state <> 'gone'", 4),
    "not counted while buffered": (
        "FILTER (WHERE kind <> 'backfill' AND state [-<> 'running'-]{+= 'waiting'+})::int",
        34,
    ),
    "ended whoever has it": (
        "IF r.state = 'running' [-AND r.fence = told.fence AND r.worker_id = session -]THEN",
        224,
    ),
}
"""A change of the statements, as ``git diff --word-diff`` shows it, and a seed that has found it."""


@pytest.mark.parametrize(("change", "known"), IN_STATEMENTS.values(), ids=IN_STATEMENTS)
def test_few_seeds_find_a_statement_that_breaks_the_protocol(
    change: str, known: int, control: ControlDatabase
) -> None:
    with control.broken(*both_sides(change)):
        assert_few_seeds_find_it(known)


def assert_few_seeds_find_it(known: int) -> None:
    """``known`` is a seed that has found it, and is tried first; the others are about runs if it is."""
    about_runs = known % RUN_STORIES == RUN_STORIES - 1
    seeds = range(RUN_STORIES - 1, SEEDS * RUN_STORIES, RUN_STORIES) if about_runs else range(SEEDS)

    def run_seeds() -> None:
        for seed in (known, *seeds):
            run_seed(seed)

    with pytest.raises(AssertionError):
        run_seeds()
