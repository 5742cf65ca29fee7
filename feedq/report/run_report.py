"""Runs in words, as command and web say them: how late one began, how long it took, why it ended as it did."""

from __future__ import annotations

from datetime import datetime

from feedq import wording
from feedq.schedule.model import Run, RunState
from feedq.telemetry import mask_url


def lag_s(run: Run) -> float | None:
    """Seconds from when a run was due until it began; None when it has not."""
    if run.started_at is None or run.state is RunState.WAITING:
        return None
    return max(0.0, (run.started_at - run.due_at).total_seconds())


def took_s(run: Run, *, now: datetime) -> float | None:
    """Seconds that its last attempt has run for; None when there is none, or another is to come."""
    if run.started_at is None or run.state is RunState.WAITING:
        return None
    return max(0.0, ((run.ended_at or now) - run.started_at).total_seconds())


def seconds(value: float | None) -> str:
    """A duration, with the milliseconds that a lag is about."""
    if value is None:
        return "—"
    return f"{1000 * value:.0f} ms" if value < 1 else wording.duration(value)


def why(run: Run) -> str:
    """Why a run ended as it did, on one line."""
    return "" if run.reason is None else wording.printable(mask_url(run.reason))
