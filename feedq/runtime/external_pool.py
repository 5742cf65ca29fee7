"""What a worker does for tenures that run beside its supervisor, on threads or child processes of Celery's own
pools: see `feedq.runtime.external_stream`.

They claim, follow and release their leases themselves, and the worker's heartbeat keeps these alive. So a
tenure that ended without letting go (a child that was killed, a release while the database was away) would
leave a feed that nobody runs and nobody else may take. The worker looks for such leases and lets go of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from functools import partial
from threading import Event
from uuid import UUID

from feedq.clock import Clock
from feedq.errors import Unavailable
from feedq.model import FeedKey, Reason, Release
from feedq.runtime.lease_client import LeaseClient
from feedq.store.base import Store

FOLLOW_S = 0.5
"""How often a tenure asks about its lease: a stop request is heard within this, for one statement a feed."""
POLL_S = 0.1

Tenures = Callable[[], Collection[int]]
"""The ids of the feeds whose ``stream_feed`` runs, or is about to, in this worker."""


class ExternalPool:
    """The leases of tenures beside the supervisor. `audit` may be called from any thread."""

    def __init__(self, store: Store, lease_client: LeaseClient, tenures: Tenures, *, clock: Clock) -> None:
        self._store, self._lease_client = store, lease_client
        self._tenures = tenures
        self._clock = clock
        self._strays: set[FeedKey] = set()
        """Leases without a tenure, as the last look found them."""

    def audit(self, worker_id: UUID) -> None:
        """Let go of leases whose tenure has ended: those found twice, as one look may see half of a release."""
        self._lease_client.do(partial(self._look, worker_id))

    def await_end(self, worker_id: UUID, *, timeout_s: float) -> None:
        """Tenures see a drain by themselves; leaving before they have let go would cut them off."""
        deadline = self._clock.monotonic() + timeout_s
        with contextlib.suppress(Unavailable):
            while self._store.leases.held(worker_id) and self._clock.monotonic() < deadline:
                Event().wait(POLL_S)

    def _look(self, worker_id: UUID) -> None:
        held = self._store.leases.held(worker_id)
        # After that question: what began in between is not among its answers.
        running = set(self._tenures())
        strays = {key for key in held if key[0] not in running}
        for feed_id, epoch in strays & self._strays:
            self._lease_client.release(worker_id, Release(feed_id, epoch, Reason.RELEASED))
        self._strays = strays
