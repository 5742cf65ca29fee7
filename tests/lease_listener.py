"""A `LeaseListener` that only writes down, for tests of the lease keeper."""

from __future__ import annotations

from uuid import uuid4

from feedq.model import Heartbeat, Load, NewWorker, Worker


class RecordingListener:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.workers = 0
        self.stalled = 0.0

    def registered(self, worker: Worker) -> None:
        self.heard.append("registered")

    def reconnected(self) -> None:
        self.heard.append("reconnected")

    def suspend(self, why: str) -> None:
        self.heard.append("suspend")

    def resume(self) -> None:
        self.heard.append("resume")

    def gone(self) -> None:
        self.heard.append("gone")

    def answered(self, answer: Heartbeat) -> None:
        self.workers = answer.active_workers
        if answer.stops_pending:
            self.heard.append("stops pending")

    def summoned(self) -> None:
        self.heard.append("summoned")

    def reconcile_overdue(self) -> None:
        self.heard.append("reconcile overdue")

    def stalled_s(self) -> float:
        return self.stalled

    def load(self) -> Load:
        return Load()


def describe() -> NewWorker:
    """A worker about to register."""
    return NewWorker(uuid4(), "w1", "node.w1", 10, "host", 1, "0")
