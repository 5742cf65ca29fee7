"""The lease client: one thread that talks to the control database about feeds, for the whole worker.

Runners and the pool drop requests here and go on; the lease client takes whatever has gathered and makes one
statement of it: a thousand claims are one round trip. A database that is away is asked again with the same
requests, which match an epoch and are therefore harmless when they come late.

With nothing to ask, it waits for notifications on a session of its own: of feeds to claim, of stop requests, and
of runs. That session also holds the worker's lock: as long as it is there, a break of the keeper's session is not
a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from threading import Event, Lock
from time import monotonic
from typing import TypeAlias, TypeVar
from uuid import UUID

from feedq.control.store.postgresql import PostgresStore
from feedq.control.store.worker_session import Listener, NotifyReason
from feedq.core.limits import CLAIMS_FEW, CLAIMS_GATHERED_S
from feedq.core.model import Claim, FeedKey, ProgressReport, Release, Worker
from feedq.core.worker import RETRY_FIRST_S, RETRY_MAX_S
from feedq.errors import FeedqError, Unavailable
from feedq.telemetry.logs import LogEvent, database_event, log
from feedq.telemetry.watched_threads import TURN_S, WatchedThread, note_turn
from feedq.worker.lease_keeper import CoreDriver

LISTENER = "listener"
"""What the core calls the session for notifications."""
GROUP_MAX = 2_000
"""Requests a statement."""
RETRY_S = 0.25
BUSY_S = 1.0
"""The time after which what could not be reported is, because somebody had the lease locked."""

logger = log(__name__)

OnClaimed = Callable[[UUID, list[Claim], list[FeedKey], bool], None]
"""Hears which claims of a worker session were granted and which were not, and whether that is sure: more may
have been granted when an answer was lost. Called on the lease client's thread, as are all of these."""
StoreCall: TypeAlias = Callable[[], object]
T = TypeVar("T")


@dataclass(slots=True)
class _Group:
    """Requests that are carried out together."""

    claims: dict[UUID, list[FeedKey]] = field(default_factory=dict)
    releases: dict[UUID, list[Release]] = field(default_factory=dict)
    reports: dict[UUID, list[dict[FeedKey, ProgressReport]]] = field(default_factory=dict)
    """The reports in batches that name no feed twice: one statement would count only one of the two."""
    calls: list[StoreCall] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.claims or self.releases or self.reports or self.calls)

    @property
    def has_few_claims(self) -> bool:
        return 0 < sum(map(len, self.claims.values())) <= CLAIMS_FEW


class LeaseClient:
    """Grouped claims, releases and reports of one worker process, and what it is notified of."""

    def __init__(
        self,
        store: PostgresStore,
        driver: CoreDriver,
        *,
        on_claimed: OnClaimed,
        on_lost: Callable[[list[FeedKey]], None],
        on_heard: Callable[[Collection[str]], None],
    ) -> None:
        """``on_heard`` hears for which reasons the worker was notified."""
        self._store, self._driver = store, driver
        self._on_claimed, self._on_lost, self._on_heard = on_claimed, on_lost, on_heard
        self._woken = Event()
        self._listener: Listener | None = None
        self._worker: Worker | None = None
        """The worker session to listen for."""
        self._listens_for: Worker | None = None
        self._listen_at, self._pause_s = float("-inf"), RETRY_FIRST_S
        self._asked = Lock()
        self._group = _Group()
        """What was asked since the thread last looked."""
        self._unheard: dict[FeedKey, tuple[UUID, ProgressReport]] = {}
        """What is still to be reported of leases that somebody has locked."""
        self._busy_at = float("-inf")
        """When such a lease was last met."""
        self._claimed_at = float("-inf")
        self._farewell: StoreCall | None = None
        self._closing = Event()
        self._stopping = Event()
        self._thread = WatchedThread(self._run, name="feedq-lease-client")

    def start(self) -> None:
        self._thread.start()

    def follow(self, worker: Worker) -> None:
        """Listen for this worker session from now on."""
        self._worker = worker
        self._wake()

    def claim(self, worker_id: UUID, keys: Sequence[FeedKey]) -> None:
        with self._asked:
            self._group.claims.setdefault(worker_id, []).extend(keys)
        self._wake()

    def release(self, worker_id: UUID, releases: Sequence[Release]) -> None:
        with self._asked:
            self._group.releases.setdefault(worker_id, []).extend(releases)
        self._wake()

    def do(self, call: StoreCall) -> None:
        """Run something else that talks to the store, before the claims and releases that have not been sent yet.

        Retried as the rest.
        """
        with self._asked:
            self._group.calls.append(call)
        self._wake()

    def report(self, worker_id: UUID, progress: list[ProgressReport]) -> None:
        """Tell how feeds fare; before any release that is asked for afterwards."""
        with self._asked:
            batches = self._group.reports.setdefault(worker_id, [{}])
            for one in progress:
                if one.key in batches[-1]:
                    batches.append({})
                batches[-1][one.key] = one
        self._wake()

    def stop(self, *, timeout_s: float, farewell: StoreCall | None = None) -> None:
        """Do what is queued and then ``farewell``, if that is possible in time, and end.

        With the database away, at once.
        """
        self._farewell = farewell
        self._closing.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._stopping.set()

    # -- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._stop_listening()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            note_turn()
            group = self._gather()
            if group is None:
                if self._farewell is not None:
                    self._retry_until_done(self._farewell)
                return
            self._carry_out(group)
            # Or what was reported would stay in memory until something else is asked.
            del group

    def _carry_out(self, group: _Group) -> None:
        # Calls first: a drain must be known before the releases that follow it wake reconcile.
        for call in group.calls:
            self._retry_until_done(call)
        for worker_id, batches in group.reports.items():
            for batch in batches:
                for part in batched(map(self._with_unheard, batch.values())):
                    self._retry_until_done(partial(self._report, worker_id, part))
        for worker_id, releases in group.releases.items():
            for some in batched(releases):
                self._retry_until_done(partial(self._store.leases.release, worker_id, some))
        for worker_id, keys in group.claims.items():
            for few in batched(keys):
                self._claim(worker_id, few)
        if group.claims:
            self._claimed_at = monotonic()

    def _gather(self) -> _Group | None:
        """Take what was asked, and after several claims in a row what is asked within a moment more. None: there
        is nothing left to do."""
        with self._asked:
            must_wait = self._group.is_empty and not self._closing.is_set()
        if must_wait:
            self._wait(TURN_S)
        with self._asked:
            if self._unheard and monotonic() >= self._busy_at + BUSY_S:
                for key, (worker_id, unheard) in self._unheard.items():
                    self._group.reports.setdefault(worker_id, [{}]).insert(0, {key: unheard})
                self._unheard.clear()
        if self._group.has_few_claims and monotonic() - self._claimed_at < CLAIMS_GATHERED_S:
            self._closing.wait(CLAIMS_GATHERED_S)
        with self._asked:
            group, self._group = self._group, _Group()
            return None if group.is_empty and self._closing.is_set() else group

    def _report(self, worker_id: UUID, progress: list[ProgressReport]) -> None:
        answer = self._store.leases.report(worker_id, progress)
        busy = set(answer.busy)
        known = busy.union(answer.held)
        if busy:
            self._busy_at = monotonic()
            self._unheard |= {p.key: (worker_id, p) for p in progress if p.key in busy}
        if lost := [p.key for p in progress if p.key not in known]:
            self._on_lost(lost)

    def _with_unheard(self, progress: ProgressReport) -> ProgressReport:
        _, unheard = self._unheard.pop(progress.key, (None, None))
        return progress if unheard is None else progress.after(unheard)

    def _claim(self, worker_id: UUID, keys: list[FeedKey]) -> None:
        granted: list[Claim] = []
        tries = 0

        def claim() -> None:
            nonlocal tries
            tries += 1
            granted.extend(self._store.leases.claim(worker_id, keys))

        decided = self._retry_until_done(claim)
        got = {claim.key for claim in granted}
        refused = [key for key in keys if key not in got]
        # Everybody gets an answer, whatever happened, or their messages would be held for ever.
        try:
            self._on_claimed(worker_id, granted, refused, decided and not (refused and tries > 1))
        except Exception:
            logger.exception(LogEvent.UNEXPECTED, where="lease client")
            self._on_claimed(worker_id, [], [], False)

    def _retry_until_done(self, call: StoreCall) -> bool:
        """Repeat a call until it succeeds or the client is closed; what fails for another reason than an outage
        is dropped.

        Whether it succeeded.
        """
        away = False
        while not self._stopping.is_set():
            note_turn()
            try:
                call()
            except Unavailable as error:
                if not away:
                    logger.warning(database_event(error), where="lease client", error=str(error))
                elif self._closing.is_set():
                    # The process must leave, and the rest would fare no better.
                    self._stopping.set()
                    return False
                away = True
                self._pause(RETRY_S / 5 if self._closing.is_set() else RETRY_S)
            except FeedqError as error:
                logger.error(LogEvent.UNEXPECTED, where="lease client", error=str(error))
                return False
            except Exception:
                logger.exception(LogEvent.UNEXPECTED, where="lease client")
                return False
            else:
                return True
        return False

    def _pause(self, seconds: float) -> None:
        """Wait, and notice meanwhile if the session is lost on which the worker is notified."""
        until = monotonic() + seconds
        while not self._stopping.is_set() and (left_s := until - monotonic()) > 0:
            self._wait(left_s)

    # -- notifications -------------------------------------------------------------------------------

    def _wake(self) -> None:
        """End a `_wait`, the one under way or else the next one. From any thread."""
        self._woken.set()
        listener = self._listener
        if listener is not None:
            listener.interrupt()

    def _wait(self, timeout_s: float) -> None:
        """Wait to be woken or notified. The session is opened when there is none."""
        try:
            self._listen()
            if self._listener is None:
                self._woken.wait(timeout_s)
            elif self._listener.wait(0.0 if self._woken.is_set() else timeout_s):
                self._on_heard(self._listener.heard)
        except Exception as error:
            if not isinstance(error, Unavailable):
                logger.exception(LogEvent.UNEXPECTED, where=LISTENER)
            self._stop_listening()
            self._driver.lost(LISTENER, error, now=monotonic())
            self._listen_at = monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, RETRY_MAX_S)
        # Whoever wakes it from now on has put what there is to do where it is found after this.
        self._woken.clear()

    def _listen(self) -> None:
        worker = self._worker
        if worker is not self._listens_for:
            self._stop_listening()
        if worker is None or self._listener is not None or monotonic() < self._listen_at:
            return
        self._listener, self._listens_for = self._store.worker_listener(worker), worker
        self._pause_s = RETRY_FIRST_S
        self._driver.tell(self._driver.core.connection_opened, LISTENER)
        # Something may have been asked before we listened.
        self._on_heard(list(NotifyReason))

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


def batched(items: Iterable[T]) -> Iterator[list[T]]:
    """Cut them up into what one statement takes."""
    rest = iter(items)
    while some := list(islice(rest, GROUP_MAX)):
        yield some
