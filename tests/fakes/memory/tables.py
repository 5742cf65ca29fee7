"""The database of the tests: it keeps history, and may fail.

It can be away (every call raises `Unavailable`), lose an answer (the statement took effect, the caller is
told `Unavailable`), fail a commit, be restarted (every session breaks), break single sessions, and lose or delay
notifications.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from feedq.authorship import signed
from feedq.errors import Unavailable
from feedq.model import Event
from feedq.store.history import HistoryKept
from feedq.telemetry import EventKind
from tests.fakes.clock import ManualClock
from tests.fakes.memory.database import LeaseTable, SimulatedDatabase, Tables


@dataclass(slots=True)
class KeptTables(Tables):
    """All rows, with history and with what has been asked for."""

    events: list[Event] = field(default_factory=list)
    wakes: int = 0
    """Notifications that ask for a pass; whoever runs passes takes them back to 0."""

    def copy(self) -> KeptTables:
        """A snapshot, to go back to: values are frozen."""
        return replace(
            self,
            feeds=dict(self.feeds),
            names=dict(self.names),
            dirty=set(self.dirty),
            leases=dict(self.leases),  # type: ignore[arg-type] # made a table again when it is gone back to
            workers=dict(self.workers),
            events=list(self.events),
            idle_counts=dict(self.idle_counts),
        )


class MemoryDatabase(SimulatedDatabase):
    """The server, and its faults."""

    tables: KeptTables
    clock: ManualClock

    def __init__(self, clock: ManualClock, *, keep: HistoryKept) -> None:
        super().__init__(clock)
        self.tables = KeptTables(clock.now(), clock.now(), self.started_at)
        self.keep = keep
        self.notifications: dict[UUID, list[float]] = {}
        """When a worker's listener hears the notifications that it has not heard yet."""
        self.notifications_to_lose = 0
        self.notifications_take_s = 0.0
        self.away = False
        self.answers_to_lose = 0
        self.commits_to_fail = 0

    def require(self) -> None:
        if self.away:
            raise Unavailable("control database (in memory): away")

    def answer(self) -> None:
        self.require()
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise Unavailable("control database (in memory): the answer was lost")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        before = self.tables.copy()
        try:
            yield
            self.require()
            if self.commits_to_fail:
                self.commits_to_fail -= 1
                raise Unavailable("control database (in memory): the commit failed")
        except BaseException:
            before.leases = LeaseTable(before.leases)
            self.tables = before
            raise

    def record(
        self,
        kind: EventKind,
        *,
        feed_id: int | None = None,
        worker_id: UUID | None = None,
        epoch: int | None = None,
        **detail: Any,
    ) -> None:
        self.tables.events.append(Event(self.now(), kind.value, feed_id, worker_id, epoch, signed(detail)))

    def trim_history(self) -> None:
        oldest = self.now() - timedelta(days=self.keep.days)
        self.tables.events = [event for event in self.tables.events if event.at >= oldest]

    def wake(self) -> None:
        self.tables.wakes += 1

    def notify(self, worker_ids: Iterable[UUID]) -> None:
        for worker_id in worker_ids:
            if self.notifications_to_lose:
                self.notifications_to_lose -= 1
            else:
                self.notifications.setdefault(worker_id, []).append(
                    self.clock.monotonic() + self.notifications_take_s
                )

    def hear(self, worker_id: UUID) -> bool:
        """Whether a notification has come in since the last time."""
        coming, now = self.notifications.pop(worker_id, []), self.clock.monotonic()
        if late := [at for at in coming if at > now]:
            self.notifications[worker_id] = late
        return len(late) < len(coming)
