"""The lease client: one thread that talks to the control database about feeds, for the whole worker.

Runners and the pool drop requests here and go on; the lease client takes whatever has gathered and makes one
statement of it: a thousand claims are one round trip. A database that is away is asked again with the same
requests, which match an epoch and are therefore harmless when they come late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import TypeAlias
from uuid import UUID

from feedq.control.store.postgresql import PostgresStore
from feedq.core.limits import CLAIMS_FEW, CLAIMS_GATHERED_S
from feedq.core.model import Claim, FeedKey, Progress, Release
from feedq.errors import FeedqError, Unavailable
from feedq.telemetry.logs import LogEvent, database_event, log

GROUP_MAX = 2_000
"""Requests a statement."""
RETRY_S = 0.25

logger = log(__name__)

OnClaimed = Callable[[UUID, list[Claim], list[FeedKey], bool], None]
"""Hears which claims of a worker session were granted and which were not, and whether that is sure: more may
have been granted when an answer was lost. Called on the lease client's thread, as are all of these."""
StoreCall: TypeAlias = Callable[[], object]
Request: TypeAlias = tuple[UUID, FeedKey] | tuple[UUID, Release] | tuple[UUID, Progress] | StoreCall | None
"""A claim, a release, a report, something else to do, or None for the end."""


@dataclass(slots=True)
class _Group:
    """Requests that are carried out together."""

    claims: dict[UUID, list[FeedKey]] = field(default_factory=dict)
    releases: dict[UUID, list[Release]] = field(default_factory=dict)
    reports: dict[UUID, list[dict[FeedKey, Progress]]] = field(default_factory=dict)
    """The reports in batches that name no feed twice: one statement would count only one of the two."""
    calls: list[StoreCall] = field(default_factory=list)
    is_last: bool = False

    @property
    def claim_count(self) -> int:
        return sum(map(len, self.claims.values()))

    def add(self, item: Request) -> None:
        if item is None:
            self.is_last = True
        elif callable(item):
            self.calls.append(item)
        elif isinstance(item[1], Release):
            self.releases.setdefault(item[0], []).append(item[1])
        elif isinstance(item[1], Progress):
            batches = self.reports.setdefault(item[0], [{}])
            if item[1].key in batches[-1]:
                batches.append({})
            batches[-1][item[1].key] = item[1]
        else:
            self.claims.setdefault(item[0], []).append(item[1])


class LeaseClient:
    """Grouped claims, releases and reports of one worker process."""

    def __init__(
        self,
        store: PostgresStore,
        *,
        on_claimed: OnClaimed,
        on_lost: Callable[[list[FeedKey]], None],
    ) -> None:
        self._store = store
        self._on_claimed, self._on_lost = on_claimed, on_lost
        self._queue: SimpleQueue[Request] = SimpleQueue()
        self._claimed_at = float("-inf")
        self._farewell: StoreCall | None = None
        self._closing = Event()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="feedq-lease-client", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def claim(self, worker_id: UUID, key: FeedKey) -> None:
        self._queue.put((worker_id, key))

    def release(self, worker_id: UUID, release: Release) -> None:
        self._queue.put((worker_id, release))

    def do(self, call: StoreCall) -> None:
        """Run something else that talks to the store, before the claims and releases that have not been sent yet.

        Retried as the rest.
        """
        self._queue.put(call)

    def report(self, worker_id: UUID, progress: list[Progress]) -> None:
        """Tell how feeds fare; before any release that is asked for afterwards."""
        for one in progress:
            self._queue.put((worker_id, one))

    def stop(self, *, timeout_s: float, farewell: StoreCall | None = None) -> None:
        """Do what is queued and then ``farewell``, if that is possible in time, and end.

        With the database away, at once.
        """
        self._farewell = farewell
        self._closing.set()
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._stopping.set()

    # -- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            group = self._gather()
            # Calls first: a drain must be known before the releases that follow it wake reconcile.
            for call in group.calls:
                self._retry_until_done(call)
            for worker_id, batches in group.reports.items():
                for batch in batches:
                    self._retry_until_done(partial(self._report, worker_id, list(batch.values())))
            for worker_id, mine in group.releases.items():
                self._retry_until_done(partial(self._release, worker_id, mine))
            for worker_id, keys in group.claims.items():
                self._claim(worker_id, keys)
            if group.claims:
                self._claimed_at = monotonic()
            if group.is_last:
                if self._farewell is not None:
                    self._retry_until_done(self._farewell)
                return

    def _gather(self) -> _Group:
        """Take all requests that have come in, and after several claims in a row those that come within a
        moment more."""
        group = _Group()
        group.add(self._queue.get())
        room = iter(range(GROUP_MAX))
        self._add_what_waits(group, room)
        if 0 < group.claim_count <= CLAIMS_FEW and monotonic() - self._claimed_at < CLAIMS_GATHERED_S:
            self._stopping.wait(CLAIMS_GATHERED_S)
            self._add_what_waits(group, room)
        return group

    def _add_what_waits(self, group: _Group, room: Iterator[int]) -> None:
        for _ in room:
            if group.is_last:
                break
            try:
                group.add(self._queue.get_nowait())
            except Empty:
                break

    def _report(self, worker_id: UUID, progress: list[Progress]) -> None:
        matched = set(self._store.leases.report(worker_id, progress))
        if lost := [p.key for p in progress if p.key not in matched]:
            self._on_lost(lost)

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

    def _release(self, worker_id: UUID, releases: list[Release]) -> None:
        self._store.leases.release(worker_id, releases)

    def _retry_until_done(self, call: StoreCall) -> bool:
        """Repeat a call until it succeeds or the client is closed; what fails for another reason than an outage
        is dropped.

        Whether it succeeded.
        """
        away = False
        while not self._stopping.is_set():
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
                self._stopping.wait(RETRY_S / 5 if self._closing.is_set() else RETRY_S)
            except FeedqError as error:
                logger.error(LogEvent.UNEXPECTED, where="lease client", error=str(error))
                return False
            except Exception:
                logger.exception(LogEvent.UNEXPECTED, where="lease client")
                return False
            else:
                return True
        return False
