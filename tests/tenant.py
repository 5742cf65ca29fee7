"""A tenant that only listens, for tests of the keeper."""

from __future__ import annotations

from uuid import uuid4

from feedq.model import Load, NewWorker, Worker


class Tenant:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def registered(self, worker: Worker) -> None:
        self.heard.append("registered")

    def suspend(self, why: str) -> None:
        self.heard.append("suspend")

    def resume(self) -> None:
        self.heard.append("resume")

    def gone(self) -> None:
        self.heard.append("gone")

    def stops_pending(self) -> None:
        self.heard.append("stops pending")

    def reconcile_overdue(self) -> None:
        self.heard.append("reconcile overdue")

    def load(self) -> Load:
        return Load()


def describe() -> NewWorker:
    """A worker about to register."""
    return NewWorker(uuid4(), "w1", "node.w1", 10, "host", 1, "0")
