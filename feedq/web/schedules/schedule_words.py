"""Runs and times in words, as the pages say them; what the command says alike is in `feedq.report.run_report`."""

from __future__ import annotations

from datetime import datetime

from feedq import wording
from feedq.schedule.model import Run, RunKind
from feedq.web.particulars import stamp


def until(at: datetime | None, *, now: datetime) -> str:
    """How far away a moment is, on either side of now."""
    if at is None:
        return "-"
    seconds = (at - now).total_seconds()
    return f"in {wording.duration(seconds)}" if seconds >= 0 else f"due {wording.duration(-seconds)} ago"


def what(run: Run) -> str:
    """Which tick or trigger a run is."""
    moment = stamp(run.tick_at)
    if run.ticks > 1:
        return f"{run.ticks:,} ticks from {moment}"
    return moment if run.kind is RunKind.TICK else f"{moment} ({run.kind})"


def past(run: Run, *, now: datetime) -> str:
    """How long ago a run ended, or else began or fell due."""
    moment = run.ended_at or run.started_at or run.due_at
    away = (now - moment).total_seconds()
    return f"{wording.duration(away)} ago" if away >= 0 else until(moment, now=now)
