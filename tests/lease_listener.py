"""A lease keeper whose core's actions are only written down."""

from __future__ import annotations

from random import Random
from uuid import uuid4

from feedq.control.store.postgresql import PostgresStore
from feedq.core import worker_actions as actions
from feedq.core.clock import Clock
from feedq.core.model import Heartbeat, Load, NewWorker
from feedq.core.worker import WorkerCore
from feedq.core.worker_actions import Action
from feedq.settings import Settings
from feedq.worker.lease_client import LeaseClient
from feedq.worker.lease_keeper import CoreDriver, LeaseKeeper

_HEARD: dict[type[object], str] = {
    actions.Suspend: "suspend",
    actions.Resume: "resume",
    actions.FetchOrders: "orders",
    actions.FetchHeld: "audit",
    actions.RunReconcile: "reconcile overdue",
}


class RecordingListener:
    """Writes down what the core wants done."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.workers = 0
        self.stalled = 0.0
        self._keeper: LeaseKeeper
        self.lease_client: LeaseClient
        """Of the keeper that was made last: listens for its worker, once it is started."""

    def make_keeper(self, store: PostgresStore, settings: Settings, clock: Clock) -> LeaseKeeper:
        core = WorkerCore(settings, rng=Random(1), now=clock.monotonic())
        driver = CoreDriver(core, self._perform)
        self.lease_client = LeaseClient(
            store,
            driver,
            on_claimed=lambda *_: None,
            on_lost=lambda _: None,
            on_heard=lambda _: driver.tell(core.orders_pending),
        )
        self._keeper = LeaseKeeper(
            store,
            driver,
            lambda: store.workers.register(describe(), ttl_s=settings.ttl_s),
            settings=settings,
            clock=clock,
            load=Load,
            stalled_s=lambda: self.stalled,
            on_registered=self.lease_client.follow,
            on_answer=self._answered,
        )
        return self._keeper

    def _perform(self, action: Action) -> None:
        if type(action) in _HEARD:
            self.heard.append(_HEARD[type(action)])

    def _answered(self, answer: Heartbeat) -> None:
        self.workers = answer.active_workers


def describe() -> NewWorker:
    """A worker about to register."""
    return NewWorker(uuid4(), "w1", "node.w1", 10, "host", 1, "0")
