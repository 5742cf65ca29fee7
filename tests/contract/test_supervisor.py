"""The supervisor with all its threads, on PostgreSQL and over TCP: claims, doubts, and leaving in time."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from threading import Event, Thread, current_thread
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.tcp import TcpOptions
from feedq.control import reconcile as control
from feedq.control.store.history import EventFilter
from feedq.core.loss import Loss
from feedq.core.model import (
    JSON,
    Assignment,
    Claim,
    FeedKey,
    FeedSpec,
    LeaseState,
    NewWorker,
    Reason,
    Release,
    TargetState,
    Worker,
)
from feedq.core.notices import notice_sentences
from feedq.errors import InvalidInput
from feedq.records.batch import Batch, Records
from feedq.settings import Settings
from feedq.sinks import field_watch
from feedq.telemetry.event_names import EventKind
from feedq.worker import supervisor
from feedq.worker.activity import Activity, Limits
from feedq.worker.jobs.job_service import Jobs
from feedq.worker.runner import FeedRunner
from feedq.worker.supervisor import Supervisor
from feedq.worker.thread_pool import ThreadPool
from feedq.worker.watch import Watch
from tests.contract.harness import Harness
from tests.contract.shell import opened_shell
from tests.waiting import until

DRAIN_S = 20.0
"""Longer than a busy machine takes to release a few feeds."""


class Source:
    """Accepts connections, sends numbered lines, and knows how many connections are open."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.open = self.accepted = 0
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.accepted += 1
                Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        self.open += 1
        with suppress(OSError), connection:
            for n in range(1_000_000):
                connection.sendall(b'{"seq": %d}\n' % n)
                time.sleep(0.02)
        self.open -= 1

    def close(self) -> None:
        # Closing alone would leave the thread in accept(), and the port open.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Stage:
    """One supervisor, its control database, and a source."""

    def __init__(
        self,
        harness: Harness,
        *,
        source: Source | None = None,
        environment: str | None = None,
        **settings: Any,
    ) -> None:
        self.harness, self.store = harness, harness.store
        self.source = source or Source()
        self.said: list[str] = []
        self.settings = Settings(
            database_url=harness.url,
            # Checkpoints of the tests before this one are of other feeds with the same ids.
            environment=environment or uuid4().hex,
            heartbeat_s=0.2,
            ttl_s=3600,
            settle_s=0,
            drain_timeout_s=DRAIN_S,
            flush_interval_s=0.05,
            **settings,
        )
        self.watch = Watch(Activity.private(), Limits(self.settings.stall_s, 0))
        self.supervisor = Supervisor(
            self.store,
            self.settings,
            self.register,
            reconcile=lambda: None,
            watch=self.watch,
        )
        self.supervisor.start()

    def register(self) -> Worker:
        new = NewWorker(uuid4(), "w1", "node.w1", 10, "host", 1, "0")
        return self.store.workers.register(new, ttl_s=self.settings.ttl_s)

    @property
    def worker_id(self) -> UUID:
        assert self.supervisor.worker is not None
        return self.supervisor.worker.id

    def add_feed(self, name: str = "a", sink: str = "default") -> int:
        source = {"url": f"tcp://127.0.0.1:{self.source.port}"}
        spec = FeedSpec(name=name, connector="tcp", source=source, sink={"name": sink, "table": "landed"})
        return self.store.feeds.add(spec).id

    def reconcile(self) -> None:
        def send(given: Sequence[Assignment]) -> None:
            for one in given:
                self.offer(one.key)

        control.reconcile(self.store, send, self.settings)

    def offer(self, key: FeedKey) -> None:
        self.supervisor.offer(key, self)

    def accepted(self) -> None: ...

    def finished(self, why: str) -> None:
        self.said.append(why)

    def audit(self) -> None:
        self.supervisor._driver.tell(self.supervisor.core.ask_for_audit, now=time.monotonic())

    def lease(self, name: str = "a") -> Any:
        return self.store.feeds.view(name).lease

    def streaming(self) -> None:
        until(lambda: self.source.open == 1, "one connection is open")

    def leave(self) -> float:
        """How long it took."""
        began = time.monotonic()
        self.supervisor.drain()
        self.supervisor.join()
        took_s = time.monotonic() - began
        self.watch.stop()
        return took_s


@pytest.fixture
def stage(harness: Harness) -> Iterator[Stage]:
    made = Stage(harness)
    yield made
    made.leave()
    made.source.close()


def test_a_stop_that_follows_a_claim_at_once_is_heeded(stage: Stage) -> None:
    for n in range(20):
        stage.add_feed(f"feed-{n}")
    stage.harness.execute("UPDATE feedq.worker SET capacity = 100")
    stage.reconcile()
    until(lambda: stage.lease("feed-0").state is LeaseState.RUNNING, "claimed")
    for n in range(20):
        stage.store.feeds.set_target(f"feed-{n}", TargetState.PAUSED)
    stage.reconcile()

    def paused() -> bool:
        leases = [stage.lease(f"feed-{n}") for n in range(20)]
        return {(one.state, one.reason) for one in leases} == {(LeaseState.IDLE, Reason.PAUSED)}

    until(paused, "all paused")
    until(lambda: stage.source.open == 0, "no connection is left")


def three_feeds(stage: Stage, *, quarantined: bool) -> None:
    for name in ("a", "b", "c"):
        stage.add_feed(name)
    if quarantined:
        lost = stage.store.workers.register(NewWorker(uuid4(), "l", "node.l", 0, "h", 9, "0"), ttl_s=3600)
        stage.store.workers.report_loss(
            lost.id, Loss("stalled", "stood still", stage.store.feeds.get("b").id, is_certain=True)
        )


def test_a_connector_is_imported_beside_the_loop_on_which_others_stream(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    importers: list[str] = []

    def load(kind: str) -> Any:
        importers.append(current_thread().name)
        raise InvalidInput(f"no {kind} here")

    monkeypatch.setattr(supervisor, "load_connector", load)
    stage.add_feed()
    stage.reconcile()
    stage.streaming()
    assert importers == ["feedq-lease-client"]


@pytest.mark.parametrize("quarantined", [False, True])
def test_a_feed_that_cannot_be_started_is_released_with_the_reason_and_the_others_start(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, quarantined: bool
) -> None:
    def cannot(self: Any, *given: Any) -> None:
        is_meant = given[0].feed.name == "b" if given else self.name.startswith("feedq-apart-")
        if is_meant:
            raise RuntimeError("can't start new thread")
        real(self, *given)

    kind, method = (Thread, "start") if quarantined else (FeedRunner, "__init__")
    real: Any = getattr(kind, method)
    monkeypatch.setattr(kind, method, cannot)
    three_feeds(stage, quarantined=quarantined)
    stage.reconcile()
    until(lambda: stage.source.open == 2, "the other two stream")
    until(lambda: stage.lease("b").state is LeaseState.IDLE, "it is released")
    assert stage.lease("b").reason is (Reason.QUARANTINED if quarantined else Reason.BACKOFF)
    assert stage.lease("b").last_error == "it could not be started: can't start new thread"
    assert stage.supervisor.feeds == 2
    assert len(stage.supervisor._apart) == 0


def test_a_feed_that_was_to_start_and_does_not_run_is_released(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = stage.supervisor._start_feeds

    def start(claims: list[Claim]) -> None:
        real([claim for claim in claims if claim.feed.name != "b"])

    monkeypatch.setattr(stage.supervisor, "_start_feeds", start)
    three_feeds(stage, quarantined=False)
    stage.reconcile()
    until(lambda: stage.source.open == 2, "the other two stream")
    until(lambda: stage.lease("b").state is LeaseState.IDLE, "it is released")
    assert stage.lease("b").reason is Reason.BACKOFF
    assert stage.supervisor.feeds == 2


class Deaf:
    """Reads on whatever it is told, and dials anew when its connection ends; can keep the event loop busy."""

    Options: ClassVar[type[ConnectorOptions]] = TcpOptions
    may_end = Event()
    keeps_the_loop = False

    def __init__(self, options: TcpOptions, context: Context) -> None:
        self._where = (options.location.host, options.location.port)
        self._context = context

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        while not Deaf.may_end.is_set():
            with socket.create_connection(self._where) as connection:
                connection.setblocking(Deaf.keeps_the_loop)
                self._context.guard.watch(connection.fileno())
                self._context.on_connected()
                await self._read(connection)
                self._context.guard.forget(connection.fileno())
        yield Records(records=(b"{}",)).batch(cursor=1, received_at=datetime.now(UTC))

    async def _read(self, connection: socket.socket) -> None:
        while not Deaf.may_end.is_set():
            with suppress(asyncio.CancelledError, BlockingIOError):
                try:
                    if not connection.recv(2**16):
                        return
                except ConnectionError:
                    return
            if not Deaf.keeps_the_loop:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)


@pytest.fixture
def deaf(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Deaf]]:
    Deaf.may_end.clear()
    Deaf.keeps_the_loop = False
    monkeypatch.setattr("feedq.worker.runner.load_connector", lambda _: Deaf)
    yield Deaf
    Deaf.may_end.set()
    until(lambda: stage.supervisor.feeds == 0, "its stream has ended")


def take_away(stage: Stage) -> None:
    """As a pass does with a lease whose owner does not let go in time."""
    stage.harness.execute(
        "UPDATE feedq.lease SET state = 'idle', worker_id = NULL, reason = 'reaped' RETURNING 1"
    )


def test_a_stream_that_does_not_end_loses_its_connection_when_its_lease_is_lost(
    stage: Stage, deaf: type[Deaf]
) -> None:
    stage.add_feed()
    stage.reconcile()
    stage.streaming()
    take_away(stage)
    stage.audit()
    until(lambda: stage.source.accepted > 1, "cut")
    until(lambda: stage.source.accepted > 3, "and cut again whenever it dials anew")


def test_it_says_goodbye_after_the_last_release(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    leave, release = stage.store.workers.leave, stage.store.leases.release

    def saying_leave(worker_id: UUID) -> None:
        calls.append("leave")
        leave(worker_id)

    def saying_release(worker_id: UUID, releases: Sequence[Release]) -> list[FeedKey]:
        calls.append("release")
        return release(worker_id, releases)

    monkeypatch.setattr(stage.store.workers, "leave", saying_leave)
    monkeypatch.setattr(stage.store.leases, "release", saying_release)
    stage.add_feed()
    stage.reconcile()
    stage.streaming()
    until(lambda: stage.lease().records_total > 0, "it lands")
    assert stage.leave() < DRAIN_S
    assert calls[-2:] == ["release", "leave"]
    lease = stage.lease()
    assert (lease.state, lease.reason) == (LeaseState.IDLE, Reason.RELEASED)


def raise_the_sinks_epoch(stage: Stage, epoch: int) -> None:
    """As after the control database was restored from a backup: the sink has seen more than it knows."""
    sql = "UPDATE feedq_checkpoint SET epoch = %s WHERE environment = %s RETURNING 1"
    until(lambda: stage.harness.execute(sql, epoch, stage.settings.environment), "the checkpoint is there")


def forget_a_claim(stage: Stage) -> None:
    """The database takes the worker for the owner of a feed that it does not run, as a replica does that was
    promoted and has not heard of the release."""
    feed_id = stage.add_feed("b")
    sql = """
        INSERT INTO feedq.lease (feed_id, epoch, state, reason, worker_id, running_since)
        VALUES (%s, 7, 'running', NULL, %s, clock_timestamp())
        ON CONFLICT (feed_id) DO UPDATE SET epoch = excluded.epoch, state = excluded.state, reason = NULL,
            worker_id = excluded.worker_id, running_since = excluded.running_since
        RETURNING 1
    """
    assert stage.harness.execute(sql, feed_id, str(stage.worker_id))


def test_what_is_not_run_here_is_released_once_another_feed_was_fenced(stage: Stage) -> None:
    stage.add_feed()
    stage.reconcile()
    stage.streaming()
    forget_a_claim(stage)
    raise_the_sinks_epoch(stage, 100)
    until(lambda: stage.lease("b").state is LeaseState.IDLE, "released")


def test_a_feed_whose_sink_is_ahead_streams_again_under_a_larger_epoch(stage: Stage) -> None:
    stage.add_feed()
    stage.reconcile()
    stage.streaming()
    raise_the_sinks_epoch(stage, 100)
    until(lambda: stage.lease().state is LeaseState.IDLE, "its owner gives way")
    stage.reconcile()
    stage.streaming()
    assert stage.lease().epoch == 101


def test_what_is_not_run_here_is_released_after_a_new_session(stage: Stage) -> None:
    forget_a_claim(stage)
    sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    stage.harness.execute(sql, f"feedq-keeper/{stage.worker_id}")
    until(lambda: stage.lease("b").state is LeaseState.IDLE, "released")


def test_jobs_are_woken_when_the_worker_is_trusted_again_under_another_session(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, before = stage.supervisor, stage.worker_id
    until(lambda: supervisor.lease_keeper.trusted, "it is trusted")
    supervisor.jobs = jobs = Jobs(
        stage.store.jobs.runs,
        stage.settings,
        session=lambda: supervisor.core.worker_id,
        is_trusted=lambda: supervisor.lease_keeper.trusted,
        call=lambda _: None,
        count=1,
        threads=ThreadPool(),
    )
    monkeypatch.setattr(jobs, "notified", lambda _: None)  # which the next session is as well, a moment later
    woken: list[UUID | None] = []
    monkeypatch.setattr(jobs.slots, "wake", lambda: woken.append(jobs.slots._trusted_session()))
    assert supervisor.worker is not None
    stage.harness.expire_workers(supervisor.worker)
    until(lambda: woken, "woken")
    assert woken == [supervisor.core.worker_id]
    assert woken != [before]


# -- a new field of the records ----------------------------------------------------------------------


def test_a_new_field_is_told_once_and_becomes_a_column_when_somebody_says_so(
    stage: Stage, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field_watch, "LOOK_AGAIN_S", 0.1)
    harness = stage.harness
    harness.execute("DROP TABLE IF EXISTS drifting; CREATE TABLE drifting (n bigint)")
    source = {"url": f"tcp://127.0.0.1:{stage.source.port}"}
    columns = {"n": {"pointer": "/n", "missing": "default", "default": 0}}
    sink = {"table": "drifting", "columns": columns, "drift": "event"}
    stage.store.feeds.add(FeedSpec(name="a", connector="tcp", source=source, sink=sink, tenant="acme"))
    stage.reconcile()
    until(lambda: stage.lease().noticed, "it is in the status")
    assert stage.lease().noticed == {"field:seq": "bigint"}
    (sentence,) = notice_sentences(stage.lease().noticed)
    assert sentence == "no column takes the field 'seq' (bigint) of the records"
    told = EventFilter((EventKind.FEED_NOTICED, EventKind.COLUMNS_ADDED))
    (first,) = stage.harness.store.history.before(told)
    assert first.event.detail == {"field:seq": "bigint"}
    with opened_shell(harness.url, broker_url) as shell:
        assert sentence in shell.ok("feed", "show", "a")
        asked = json.loads(shell.ok("feed", "drift", "a", "--json"))
        (statement,) = asked["statements"]
        assert (asked["fields"], asked["applied"]) == ({"seq": "bigint"}, False)
        refused = shell.run("feed", "drift", "a", "--apply", "--yes")
        assert (refused.exit_code, "sink.drift is event" in refused.stderr) == (1, True)
        shell.ok("feed", "set", "a", "sink.drift=add")
        stage.reconcile()
        until(lambda: stage.lease().state is LeaseState.IDLE, "it stopped")
        stage.reconcile()
        until(lambda: stage.lease().generation == 2 and stage.lease().noticed, "it is told again")
        assert (
            shell.ok("feed", "drift", "a", "--apply", "--yes", "--reason", "wanted")
            .strip()
            .endswith(statement)
        )
    until(lambda: harness.execute("SELECT 1 FROM drifting WHERE seq > 0 LIMIT 1"), "the column is filled")
    until(lambda: stage.lease().noticed == {"field:seq": "bigint, added"}, "and that is told")
    kinds = {one.event.kind: one.event.detail for one in stage.harness.store.history.before(told)}
    assert kinds[EventKind.COLUMNS_ADDED]["statements"] == [statement]
    assert kinds[EventKind.COLUMNS_ADDED]["by"]["why"] == "wanted"
