"""A whole fleet without processes: workers, beat, broker, source, sink and control database, ticked by hand.

Every step is logged in words, so that a story can be read and compared as a transcript, and every step ends
with the invariants: no feed is read by two living workers, no row is lost or doubled, no two assignments share
an epoch, and nobody who is gone holds a lease.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from uuid import NAMESPACE_OID, uuid5

from feedq.celery.beat import CALM_CHECK_S, LEADER_TTL_S, LOOK_INTERVAL_S
from feedq.control.reconcile import PASSES_IN_A_ROW, PassReport, reconcile
from feedq.control.store.election import Election
from feedq.control.store.postgresql import PostgresStore
from feedq.core.lease import on_edit
from feedq.core.model import (
    Assignment,
    FeedKey,
    FeedSpec,
    LeaseState,
    TargetState,
    Worker,
    WorkerState,
    WorkerTarget,
)
from feedq.core.selection import Selection
from feedq.errors import Unavailable
from feedq.settings import Settings
from feedq.telemetry.logs import EventKind
from feedq.verbs import bulk
from feedq.verbs.fleet import find_worker
from tests.fakes import control
from tests.fakes.clock import SkewedClock
from tests.fakes.control import EventRow, Interrupted, is_open
from tests.fakes.durations import DURATIONS
from tests.fakes.fleet_runs import FleetRuns
from tests.fakes.invariants import overfull_workers, problems_of_move, problems_of_rows
from tests.fakes.servers import FakeBroker, FakeSink, FakeSource
from tests.fakes.stream import numbers
from tests.fakes.worker import FakeWorker
from tests.waiting import until

SOURCE = {"url": "paper://source"}
"""All feeds have one source: what one cannot reach from a worker the others cannot."""
STEP_S = 0.1
BEAT = uuid5(NAMESPACE_OID, "beat")
TICK_MIN_S = 0.1
"""What beat makes of a reconcile interval of nothing."""


class InvariantBroken(AssertionError):
    """The protocol failed; the message ends with the transcript up to that moment."""


def move_feed(store: PostgresStore, name: str, worker: str, settings: Settings) -> None:
    """Has one feed moved. Raises why it cannot be."""
    moved = store.listing.chosen(Selection(names=(name,)), limit=1)
    to = find_worker(store, worker)
    for _, error in bulk.failed(bulk.move(store, moved, settings, to=to, told=lambda done, total: None)):
        raise error


class FakeFleet:
    """Everything on one sheet. ``step`` moves time; the verbs are faults and what people do."""

    def __init__(
        self,
        *,
        step_s: float = STEP_S,
        rate_hz: float = 2.0,
        settings: Settings | None = None,
        sink: FakeSink | None = None,
    ) -> None:
        self.settings = settings or DURATIONS
        self.control = control.current()
        self.control.reset()
        self.clock = self.control.clock
        self._began = self.clock.now()
        self.store = self.control.store(restart_hold_s=self.settings.restart_hold_s)
        self._election: Election | None = None
        self.broker = FakeBroker()
        self.source = FakeSource(self.clock, rate_hz=rate_hz)
        self.sink = sink or FakeSink()
        self.workers: dict[str, FakeWorker] = {}
        self.lines: list[str] = []
        self.has_beat = True
        self.beat_interrupted_in: int | None = None
        """After so many more statements and commits the beat dies, if set."""
        self.runs: FleetRuns | None = None
        """The schedules of the fleet, if it has any."""
        self.passes = self.looks = 0
        self._step_s = step_s
        self._next_pass_at = self._next_look_at = 0.0
        self._falls_due = False
        """Whether something falls due by the time of the next look."""
        self._feeds_added = 0
        self._events_told = 0
        self._checked_at = self._viewed_at = -1
        """How often the tables had changed by then."""
        self._wanted: list[int] = []
        """Feeds that should run."""
        self._unplaced: dict[str, int] = {}
        self._was_away = False
        self._sessions: dict[FeedKey, Worker | None] = {}
        """Which worker session has held a feed under an epoch."""
        self._epochs: dict[int, int] = {}
        self._forgotten: set[int] = set()
        """Feeds whose lease row was deleted: their epochs begin anew, and only the sink keeps two owners apart."""
        self._rows_seen: dict[int, int] = {}
        self._lost_at: dict[int, float] = {}
        """When a lease row was deleted, or its owner was no longer waited for."""

    # -- what people do, and what happens ------------------------------------------------------------

    def add_worker(
        self,
        name: str,
        *,
        capacity: int = 100,
        labels: Mapping[str, str] | None = None,
        offset_s: float = 0.0,
        rate: float = 1.0,
    ) -> None:
        clock = SkewedClock(self.clock, offset_s=offset_s, rate=rate)
        self.workers[name] = FakeWorker(name, self, clock=clock, capacity=capacity, labels=labels or {})
        self.say(f"worker {name}", "starts")

    def add_feeds(self, count: int) -> None:
        added = []
        for _ in range(count):
            self._feeds_added += 1
            name, sink = f"feed-{self._feeds_added}", {"table": "paper"}
            spec = FeedSpec(name=name, connector="paper", source=SOURCE, sink=sink)
            added.append(self.store.feeds.add(spec).id)
        self.say("person", f"adds {numbers(added)}")

    def deal(self, hands: Mapping[int, str]) -> None:
        """Give feeds that wait to these workers, whatever placement would say."""
        ids = {name: worker.worker.id for name, worker in self.workers.items() if worker.worker}
        with self.store.fleet.reconcile_pass() as p:
            assert p is not None
            dirty = p.take_stock(edits=len(hands)).dirty
            edits = [(feed.id, on_edit(feed, lease)) for feed, lease in dirty]
            p.apply_edits(edits, stop_within_s=self.settings.handoff_timeout_s)
            dealt = p.assign([(feed_id, ids[name]) for feed_id, name in hands.items()])
        self.broker.send(dealt)

    def target(self, feed_id: int) -> TargetState:
        ((target,),) = self.control.observe(f"EXECUTE target_of ({feed_id})")
        return TargetState(target)

    def pause(self, feed_id: int) -> None:
        self.store.feeds.set_target(self._name(feed_id), TargetState.PAUSED)
        self.say("person", f"pauses feed {feed_id}")

    def resume(self, feed_id: int) -> None:
        self.store.feeds.set_target(self._name(feed_id), TargetState.RUNNING)
        self.say("person", f"resumes feed {feed_id}")

    def edit(self, feed_id: int) -> None:
        feed = self.store.feeds.get(self._name(feed_id))
        source = SOURCE | {"edited": str(feed.generation)}
        self.store.feeds.edit(feed.spec.model_copy(update={"source": source}))
        self.say("person", f"edits feed {feed_id}")

    def remove(self, feed_id: int) -> None:
        self.store.feeds.remove(self._name(feed_id))
        self.say("person", f"removes feed {feed_id}")

    def kill(self, name: str) -> None:
        self.say(f"worker {name}", "is killed")
        self.workers.pop(name).kill()

    def freeze(self, name: str) -> None:
        self.say(f"worker {name}", "freezes")
        self.workers[name].freeze()

    def thaw(self, name: str) -> None:
        self.say(f"worker {name}", "wakes up")
        self.workers[name].thaw()

    def terminate(self, name: str) -> None:
        self.say(f"worker {name}", "gets SIGTERM")
        self.workers[name].terminate()

    def drain(self, name: str) -> None:
        self.say("person", f"drains worker {name}")
        self.want(name, WorkerTarget.DRAINED)

    def cordon(self, name: str) -> None:
        self.say("person", f"cordons worker {name}")
        self.want(name, WorkerTarget.CORDONED)

    def uncordon(self, name: str) -> None:
        self.say("person", f"uncordons worker {name}")
        self.want(name, WorkerTarget.SERVING)

    def move(self, feed_id: int, name: str) -> None:
        self.say("person", f"moves feed {feed_id} to {name}")
        move_feed(self.store, self._name(feed_id), name, self.settings)

    def want(self, name: str, target: WorkerTarget) -> None:
        self.store.workers.set_target(find_worker(self.store, name).worker.id, target)

    def become_stubborn(self, name: str) -> None:
        self.say(f"worker {name}", "hears no stop request any more")
        self.workers[name].is_stubborn = True

    def become_deaf(self, name: str) -> None:
        self.say(f"worker {name}", "hears of no assignment any more")
        self.workers[name].is_deaf = True

    def cut_off(self, name: str) -> None:
        self.say(f"worker {name}", "is cut off from the database")
        self.workers[name].is_cut_off = True

    def reconnect(self, name: str) -> None:
        self.say(f"worker {name}", "reaches the database again")
        self.workers[name].is_cut_off = False

    def database_goes_away(self) -> None:
        self.say("database", "goes away")
        self.control.is_away = True

    def database_comes_back(self) -> None:
        self.say("database", "comes back")
        self.control.is_away = False

    def database_restarts(self) -> None:
        self.say("database", "restarts")
        self.control.restart()

    def delete_lease(self, feed_id: int) -> None:
        self.say("person", f"deletes the lease of feed {feed_id}")
        self.control.observe(f"DELETE FROM feedq.lease WHERE feed_id = {feed_id}")
        self._forgotten.add(feed_id)
        self._lost_at[feed_id] = self.clock.monotonic()

    # -- time ----------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end - 1e-9:
            self.step()

    def run_until(self, condition: Callable[[], bool], *, limit_s: float) -> None:
        end = self.clock.monotonic() + limit_s
        while not condition():
            if self.clock.monotonic() >= end:
                raise self.broken(f"still not so after {limit_s:g} s")
            self.step()

    def step(self, order: Sequence[str] | None = None) -> None:
        """One step of everybody: the workers in ``order``, then the beat; then the invariants."""
        self.clock.advance(self._step_s)
        for name in order or list(self.workers):
            worker = self.workers[name]
            worker.tick()
            if worker.is_dead:
                del self.workers[name]
        self._note_trouble()
        self._tell_events()
        if self.has_beat:
            self._beat()
        self.check()

    def _note_trouble(self) -> None:
        """Of workers with jobs: whose runs may be taken away, now and a while later."""
        now = self.clock.monotonic()
        for worker in self.workers.values():
            if worker.jobs is not None and (worker.is_troubled or self.control.is_troubled):
                worker.jobs.troubled_at = now

    def _beat(self) -> None:
        self.control.step = self._beat_step
        try:
            is_due = self._look() or self.clock.monotonic() >= self._next_pass_at
            if is_due or self.control.wakes:
                self.reconcile()
        except Unavailable:
            if not self._was_away:
                self.say("beat", "finds no database")
            self._was_away = True
        except Interrupted:
            self.say("beat", "dies in the middle of it; another one takes its place")
            self.control.step = None
            if self._election is not None:
                self._election.close()
            self._election, self._next_look_at = None, 0.0
        else:
            self._was_away = False
        finally:
            self.control.step = None

    def _beat_step(self) -> None:
        if self.beat_interrupted_in is not None:
            self.beat_interrupted_in -= 1
            if self.beat_interrupted_in < 0:
                self.beat_interrupted_in = None
                raise Interrupted

    def _send(self, assignments: Sequence[Assignment]) -> None:
        """Nothing leaves a process that has just died."""
        if not isinstance(sys.exception(), Interrupted):
            self.broker.send(assignments)

    def _look(self) -> bool:
        """Whether a pass should run, going by a look if it is time for one.

        A beat hears at once when a session has ended, and knows when something falls due; beyond that it looks now
        and then."""
        if self.clock.monotonic() < self._next_look_at and not self.control.has_ended:
            return False
        self.looks += 1
        if self._election is None or not is_open(self._election._session):
            self._election = self._elected()
        check = self._election.check_liveness()
        self.control.has_ended = False
        is_due = bool(check.crashed or check.expired or check.is_due)
        often = is_due or bool(check.suspected) or self._falls_due
        self._falls_due = check.due_in_s is not None and check.due_in_s <= CALM_CHECK_S
        pause_s = LOOK_INTERVAL_S if often else check.due_in_s if self._falls_due else CALM_CHECK_S
        assert pause_s is not None
        self._next_look_at = self.clock.monotonic() + pause_s
        return is_due

    def _elected(self) -> Election:
        """Raises `Unavailable`."""
        s = self.settings
        election = Election(
            self.control.url, holder=BEAT, host="paper", pid=1, ttl_s=LEADER_TTL_S, settle_s=s.settle_s
        )
        try:
            until(election.campaign, "the server has ended the session of the beat before")
        except BaseException:
            election.close()
            raise
        return election

    def reconcile(self) -> None:
        self.control.require()
        self.control.wakes = 0
        self.passes += 1
        interval_s = max(self.settings.reconcile_interval_s, TICK_MIN_S)
        self._next_pass_at = self.clock.monotonic() + interval_s
        report = reconcile(self.store, self._send, self.settings, passes=PASSES_IN_A_ROW)
        self._tell_events()
        # While feeds of dead workers wait, passes only place feeds, and the rest follows a moment later.
        is_whole = report is not None and not report.is_fast_path
        for lease in self.control.leases() if is_whole else ():
            is_stopping = lease.state is LeaseState.STOPPING
            if is_stopping and lease.due_at is not None and lease.due_at < self.clock.now():
                raise self.broken(f"feed {lease.feed_id} is waited for beyond its time")
        if report is not None:
            self._tell_unplaced(report)
            if report.can_wait:
                self.store.fleet.wake()

    # -- what it says --------------------------------------------------------------------------------

    def say(self, who: str, what: str, *, at: datetime | None = None) -> None:
        self._tell_events()  # what was written before comes first
        t = self.clock.monotonic() if at is None else (at - self._began).total_seconds()
        self.lines.append(f"t={t:.1f} {who}: {what}")

    @property
    def transcript(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    def _tell_events(self) -> None:
        if not self.control.has_news:
            return
        self.control.has_news = False
        news = self.control.events(after=self._events_told)
        if news:
            self._events_told = news[-1].id
        alike: dict[object, list[EventRow]] = {}
        for event in news:
            if event.kind == EventKind.LEASE_REAPED and event.feed_id is not None:
                self._lost_at[event.feed_id] = self.clock.monotonic()
            about = (event.kind, event.worker, event.detail.get("reason"), event.detail.get("to"))
            alike.setdefault(about, []).append(event)
        for group in alike.values():
            self._tell(EventKind(group[0].kind), group)

    def _tell(self, kind: EventKind, events: list[EventRow]) -> None:
        name = events[0].worker or "nobody"
        feeds = numbers(e.feed_id for e in events if e.feed_id is not None)
        keys = ",".join(
            f"{feed_id}@{epoch}" for feed_id, epoch in sorted((e.feed_id, e.epoch) for e in events)
        )
        match kind:
            case EventKind.WORKER_GONE:
                who, what = f"worker {name}", "gone"
            case EventKind.LEASE_FREED:
                who, what = "control", f"frees {feeds} of {name} ({events[0].detail['reason']})"
            case EventKind.LEASE_ASSIGNED:
                who, what = "control", f"assigns {keys} to {name}"
            case EventKind.LEASE_OVERDUE:
                who, what = "control", f"withdraws {keys}, never claimed by {name}"
            case EventKind.LEASE_REAPED:
                who, what = "control", f"waits no longer for {name} to let go of {feeds}"
            case _:
                to = f", for {events[0].detail['to']}" if "to" in events[0].detail else ""
                who, what = "control", f"asks {name} to stop {feeds} ({events[0].detail['reason']}{to})"
        self.say(who, what, at=events[0].at)

    def _tell_unplaced(self, report: PassReport) -> None:
        unplaced = {reason.value: count for reason, count in report.unplaced.items()}
        if unplaced and unplaced != self._unplaced:
            waiting = ", ".join(f"{count} {reason}" for reason, count in sorted(unplaced.items()))
            self.say("control", f"cannot place {waiting}")
        self._unplaced = unplaced

    # -- what must hold ------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises `InvariantBroken`."""
        for problem in self._problems():
            raise self.broken(problem)

    def _problems(self) -> Iterator[str]:
        yield from self._problems_of_readers()
        yield from self._problems_of_leases()
        for feed_id, rows in self.sink.rows.items():
            seen = min(self._rows_seen.get(feed_id, 0), len(rows))  # fewer after the sink went back
            if seen < len(rows):
                yield from problems_of_rows(feed_id, rows, seen=seen)
            self._rows_seen[feed_id] = len(rows)
        if self.runs is not None:
            yield from self.runs.problems()
        for worker in self.workers.values():
            for stream in worker.streams.values():
                if stream.key[0] not in self._forgotten:
                    session = self._sessions.setdefault(stream.key, worker.worker)
                    if session is not worker.worker:
                        yield f"{stream.key} was held by {session} and by {worker.worker}"

    def _problems_of_leases(self) -> Iterator[str]:
        if self._checked_at == self.control.changes:
            return
        self._checked_at = self.control.changes
        leases, workers = self.control.leases(), {w.id: w for w in self.control.workers()}
        for lease in leases:
            feed_id = lease.feed_id
            if (lease.worker_id is None) != (lease.state is LeaseState.IDLE):
                yield f"feed {feed_id} is {lease.state} and belongs to {lease.worker_id}"
            if lease.worker_id and workers[lease.worker_id].state is WorkerState.GONE:
                yield f"feed {feed_id} belongs to a worker that is gone"
            before, self._epochs[feed_id] = self._epochs.get(feed_id, 0), lease.epoch
            if lease.epoch < before and feed_id not in self._forgotten:
                yield f"feed {feed_id} went from epoch {before} back to {lease.epoch}"
            yield from problems_of_move(lease)
        yield from overfull_workers(leases, workers.values())

    def _problems_of_readers(self) -> Iterator[str]:
        readers: dict[int, str] = {}
        for connection in self.source.connections:
            worker = self.workers.get(connection.owner)
            if worker is not None and worker.is_frozen:
                continue
            other = readers.setdefault(connection.feed_id, connection.owner)
            if other != connection.owner and not self._is_owner_yet_to_hear(connection.feed_id):
                yield f"feed {connection.feed_id} is read by {other} and {connection.owner} at once"

    def _is_owner_yet_to_hear(self, feed_id: int) -> bool:
        # With its lease row gone, or freed because it did not let go, the owner cannot be asked to stop: it
        # hears of it with its next report, or stops at the end of its trust window. Until then only the epoch
        # keeps it from the sink.
        return self.clock.monotonic() - self._lost_at.get(feed_id, float("-inf")) <= self.settings.ttl_s

    def everything_streams(self) -> bool:
        """Whether each feed that should run is connected, exactly once, and its rows keep up."""
        if self._viewed_at != self.control.changes:
            self._viewed_at = self.control.changes
            self._wanted = [feed_id for (feed_id,) in self.control.observe("EXECUTE wanted")]
        return all(
            len(self.source.owners(feed_id)) == 1
            and len(self.sink.rows.get(feed_id, ())) >= self.source.sent(feed_id) - 2
            for feed_id in self._wanted
            if feed_id not in self.source.poison
        )

    def broken(self, problem: str) -> InvariantBroken:
        """With the transcript, to be raised."""
        return InvariantBroken(f"t={self.clock.monotonic():.1f}: {problem}\n{self.transcript}")

    def _name(self, feed_id: int) -> str:
        ((name,),) = self.control.observe(f"EXECUTE name_of ({feed_id})")
        assert isinstance(name, str)
        return name
