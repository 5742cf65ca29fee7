"""A worker of the fleet on paper: a `SimulatedWorker` by the clock of the agenda, whose feeds dial and stream.

Who may connect when decide the turns of production (`feedq.worker.connect_limiter`), and when a source that fails
is tried again `feedq.backoff`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from feedq.backoff import RetryElsewhere, attempts_after, next_try
from feedq.model import Claim, FeedKey, Progress, Reason, Release, WorkerTarget
from feedq.settings import Settings
from feedq.simulate.agenda import Agenda, AgendaClock, to_ms
from feedq.simulate.delays import Timing
from feedq.simulate.memory import SimulatedStore
from feedq.simulate.record import FeedRecord, Recorder
from feedq.simulate.simulated_worker import SimulatedWorker
from feedq.worker import actions
from feedq.worker.actions import Action
from feedq.worker.connect_limiter import ConnectTurns, Waiter

TURNS_MS: Final = 10
"""How often at most it is looked who may dial: fine enough for people, and a tenth of the work."""
UNPUNCTUAL: Final = 0.1
"""Of the interval: how much later than it is due a heartbeat is sent at most. Workers that start together would
otherwise send all of theirs together for ever."""


@dataclass(eq=False, slots=True)
class Stream:
    """Follows a feed that this worker has, from its claim to its end."""

    claim: Claim
    record: FeedRecord
    attempts: int
    dial: Dial | None = None
    """While it waits for its turn to connect, and while it connects."""
    connected_at: float | None = None
    failing_since: float | None = None
    is_stopping: bool = False


@dataclass(eq=False, slots=True)
class Dial(Waiter):
    """Stands for a stream in the line for its remote host."""

    stream: Stream


class FleetWorker(SimulatedWorker):
    """Plays one worker process, from its start to its end."""

    def __init__(
        self,
        name: str,
        *,
        store: SimulatedStore,
        settings: Settings,
        clock: AgendaClock,
        capacity: int,
        labels: Mapping[str, str],
        timing: Timing,
        rng: Random,
        recorder: Recorder,
        away: set[str],
        reconcile: Callable[[], None],
    ) -> None:
        """``away`` are the remote hosts that refuse connections."""
        super().__init__(name, store=store, settings=settings, clock=clock, capacity=capacity, labels=labels)
        self.is_up = True
        """Whether its process runs; the control plane only learns of it."""
        self.is_leaving = False
        self.target = WorkerTarget.SERVING
        """What people want of it."""
        self.on_left: Callable[[FleetWorker], object] = lambda worker: None
        self._agenda: Agenda = clock.agenda
        self._timing, self._rng, self._recorder, self._away = timing, rng, recorder, away
        self._reconcile = reconcile
        self._streams: dict[FeedKey, Stream] = {}
        self._turns: ConnectTurns[Dial] = ConnectTurns(
            settings.connects_per_s,
            settings.host_connects_per_s,
            failover_burst_s=settings.failover_burst_s,
            rng=rng,
        )
        self._active_workers = 1
        """As the last heartbeat said."""
        self._turns_at: int | None = None
        """When somebody will ask again who may dial."""
        self._wakes_at: int | None = None
        self._hears_at: int | None = None
        self._news: list[Stream] = []
        """Feeds that have connected and not been reported yet."""

    @property
    def streaming(self) -> list[int]:
        """Lists the ids of the feeds that are connected here."""
        return [key[0] for key, stream in self._streams.items() if stream.connected_at is not None]

    # -- the process ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._agenda.at(self._agenda.now, self._wake)

    def hear(self) -> None:
        """Hears from the database that it has assignments, or is to let go of feeds."""
        when = self._agenda.now + to_ms(self._timing.start_s)
        if self._hears_at != when:
            self._hears_at = when
            self._agenda.at(when, self._ask_for_orders)

    def _ask_for_orders(self) -> None:
        if self.is_up:
            self._tell(self.core.orders_pending())

    def stop(self) -> None:
        """Takes SIGTERM: it lets go of its feeds, some at a time, and leaves."""
        self.is_leaving = True
        self._tell(self.core.drain(now=self._now))
        self._agenda.after(self._settings.drain_timeout_s, self._leave)

    def kill(self) -> None:
        """Ends it as ``kill -9`` does: its sessions end with it."""
        self.freeze()
        if self.worker is not None:
            self._store.drop_sessions(self.worker.id)

    def freeze(self) -> None:
        """Makes it stand still: nobody reads its sockets any more, and its sessions stay."""
        self.is_up = False
        self._suspend()

    def _drained(self) -> None:
        # After the releases, which the core has asked for before.
        self._agenda.at(self._agenda.now, self._leave)

    def _leave(self) -> None:
        if self.is_up:
            if self.worker is not None:
                self._store.workers.leave(self.worker.id)
            self.kill()
            self.on_left(self)

    # -- time ----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._wakes_at = None
        if not self.is_up:
            return
        self._perform(self.core.tick(self._now))
        if self._now >= self.core.heartbeat_at and not (self.core.needs_session and self.core.is_draining):
            answer = self._send_heartbeat()
            if answer is not None:
                self._active_workers = answer.active_workers
            self._perform(self.core.heartbeat_answered(answer, sent_at=self._now, now=self._now))
            self._report()
        self._tell(())

    def _tell(self, wanted: Iterable[Action]) -> None:
        """Carry out what the core has answered to an event, and be there when it wants to hear the time."""
        self._perform(wanted)
        self._ask_database()
        late_s = self._rng.random() * UNPUNCTUAL * self._settings.heartbeat_s
        wakes_at = min(to_ms(self.core.heartbeat_at + late_s), to_ms(min(self.core.wakes_at(), 1e9)))
        when = max(wakes_at, self._agenda.now + 1)
        if self._wakes_at is None or when < self._wakes_at:
            self._wakes_at = when
            self._agenda.at(when, partial(self._wake_if, when))

    def _wake_if(self, when: int) -> None:
        if self._wakes_at == when:
            self._wake()

    # -- feeds ---------------------------------------------------------------------------------------

    def _start(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            stream = Stream(claim, self._recorder.feeds[claim.feed.id], claim.attempts)
            self._streams[claim.key] = stream
            self._queue(stream, after_loss=claim.after_loss)

    def _queue(self, stream: Stream, *, after_loss: bool = False) -> None:
        """Gets into line for the remote host, and behind that for the worker's own pace."""
        stream.dial = Dial(stream.record.host, stream, after_loss=after_loss)
        self._turns.share(self._active_workers, now=self._now)
        self._turns.join(stream.dial, now=self._now)
        self._ask_soon(self._agenda.now)

    def _ask_soon(self, when: int) -> None:
        if self._turns_at is None or when < self._turns_at:
            self._turns_at = when
            self._agenda.at(when, partial(self._let_dial, when))

    def _let_dial(self, when: int) -> None:
        """Lets those dial whose turn it is."""
        if self._turns_at != when or not self.is_up:
            return
        self._turns_at = None
        self._turns.share(self._active_workers, now=self._now)
        dials = list(self._turns.let_through(self._now))
        for dial in dials:
            self._recorder.dialled(dial.stream.record.host, when)
        if dials:
            self._agenda.after(self._timing.connect_s, partial(self._connected, dials))
        if (upcoming := self._turns.next()) is not None:
            self._ask_soon(max(when + TURNS_MS, to_ms(upcoming[0])))

    def _connected(self, dials: Sequence[Dial]) -> None:
        for dial in dials:
            stream = dial.stream
            if stream.dial is not dial:
                continue  # it was cut meanwhile
            stream.dial = None
            if stream.record.host in self._away:
                self._fail(stream)
            elif self.core.is_trusted(self._now):
                stream.connected_at, stream.failing_since = self._now, None
                self._recorder.feed_up(stream.record, self._agenda.now)
                self._news.append(stream)

    def _report(self) -> None:
        """Say with each heartbeat which feeds have connected, and with that landed a record."""
        news, self._news = self._news, []
        if not news or self.worker is None:
            return
        progress = [
            Progress(*stream.claim.key, 1, 0, 0, 0.0, None, True, False, 0, None)
            for stream in news
            if stream.connected_at is not None
        ]
        matched = set(self._store.leases.report(self.worker.id, progress))
        refused = [one.key for one in progress if one.key not in matched]
        self._perform(self.core.reports_refused(refused, now=self._now))

    def hosts_went_away(self) -> None:
        for stream in list(self._streams.values()):
            if stream.connected_at is not None and stream.record.host in self._away:
                self._fail(stream)

    def _fail(self, stream: Stream) -> None:
        """Takes note that a connection broke or was refused."""
        policy = self._settings.backoff
        held_s = 0.0 if stream.connected_at is None else self._now - stream.connected_at
        failing_s = 0.0 if stream.failing_since is None else self._now - stream.failing_since
        self._cut_off(stream)
        if stream.failing_since is None:
            stream.failing_since = self._now
        stream.attempts = attempts_after(stream.attempts, connected_s=held_s, policy=policy)
        decision = next_try(
            stream.attempts,
            rng=self._rng,
            policy=policy,
            is_new_here=stream.claim.is_new_here and not held_s,
            failing_s=failing_s,
        )
        if isinstance(decision, RetryElsewhere):
            key, attempts = stream.claim.key, stream.attempts
            self._end([(stream, Release(*key, Reason.BACKOFF, decision.delay_s, attempts))])
        else:
            self._agenda.after(decision.delay_s, partial(self._dial_again, stream))

    def _dial_again(self, stream: Stream) -> None:
        if self.is_up and self._has(stream) and not stream.is_stopping and stream.dial is None:
            self._queue(stream)

    def _has(self, stream: Stream) -> bool:
        return self._streams.get(stream.claim.key) is stream

    def _suspend(self) -> None:
        for stream in self._streams.values():
            self._cut_off(stream)

    def _resume(self) -> None:
        for stream in self._streams.values():
            if not stream.is_stopping:
                self._queue(stream)

    def _stop(self, feeds: Sequence[tuple[FeedKey, Reason]]) -> None:
        stopping: list[tuple[Stream, Release | None]] = []
        for key, reason in feeds:
            stream = self._streams.get(key)
            if stream is not None and not stream.is_stopping:
                stream.is_stopping = True
                self._cut_off(stream)
                stopping.append((stream, Release(*key, reason)))
        if stopping:
            self._agenda.after(self._timing.stop_s, partial(self._end, stopping))

    def _lose(self, keys: Sequence[FeedKey]) -> None:
        lost = [stream for key in keys if (stream := self._streams.get(key))]
        self._end([(stream, None) for stream in lost])

    def _end(self, ends: Sequence[tuple[Stream, Release | None]]) -> None:
        if not self.is_up:
            return
        for stream, release in ends:
            if self._has(stream):
                self._cut_off(stream)
                key = stream.claim.key
                del self._streams[key]
                self._perform(self.core.feed_ended(key, release, "ended", now=self._now))
        if not self._is_performing:
            self._tell(())

    def _cut_off(self, stream: Stream) -> None:
        """Ends its stream and its place in a line."""
        if stream.connected_at is not None:
            stream.connected_at = None
            self._recorder.feed_down(stream.record, self._agenda.now)
        if stream.dial is not None:
            if stream.dial.is_waiting:
                self._turns.leave(stream.dial, now=self._now)
            stream.dial = None

    def _carry_out(self, action: Action) -> None:
        match action:
            case actions.HeartbeatNow():
                self._agenda.at(self._agenda.now, self._wake)
            case actions.RunReconcile():
                self._reconcile()
        super()._carry_out(action)
