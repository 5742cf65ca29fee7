"""Watching a worker hand its feeds over: how far it has got, and what it waits for."""

from __future__ import annotations

import click

from feedq.cli.invocation import Invocation
from feedq.diagnosis.checks import counted
from feedq.diagnosis.waiting_checks import explain_staying
from feedq.model import WorkerView
from feedq.wording import printable

PATIENCE_S = 3.0
"""Without progress for so long, it is asked what holds it up: a move takes a second or less."""


class Handover:
    """The feeds that a worker still has. Each step is told on standard error, not among the results."""

    def __init__(self, invocation: Invocation, view: WorkerView) -> None:
        self._invocation = invocation
        self._worker = view.worker
        self._left = view.leases
        self._told = ""
        self._changed_at = invocation.clock.monotonic()

    def is_over(self) -> bool:
        # A worker that has left holds nothing.
        views = self._invocation.store.workers.views()
        left = sum(view.leases for view in views if view.worker.id == self._worker.id)
        now = self._invocation.clock.monotonic()
        if left != self._left:
            self._left, self._changed_at = left, now
            if left:
                self._tell(f"{counted(left, 'feed')} left")
        elif left and now - self._changed_at >= PATIENCE_S:
            self._changed_at = now
            obstacle = self.obstacle()
            if obstacle is not None:
                self._tell(f"{counted(left, 'feed')} left. {obstacle}")
        return left == 0

    def obstacle(self) -> str | None:
        """Why it gets no further; None when nothing is in the way but time."""
        store = self._invocation.store
        held = [
            view
            for view in store.feeds.views(worker=self._worker.name)
            if view.lease.worker_id == self._worker.id
        ]
        others = [view for view in store.workers.views() if view.worker.id != self._worker.id]
        return explain_staying(held, others, rules=self._invocation.settings.rules)

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            click.echo(printable(f"{self._worker.name}: {text}"), err=True)
