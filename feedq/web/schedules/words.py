"""Runs in words: which tick one is, how late it began, how long it took; and arguments as they may be shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from feedq import wording
from feedq.model import JSON
from feedq.report import masked
from feedq.schedule.arguments import names_secret
from feedq.schedule.model import Run, RunKind, RunState
from feedq.telemetry import mask_url
from feedq.web.particulars import stamp

MASK = "***"
_REFERENCE = re.compile(r"\$\{[^}]+\}")


def until(at: datetime | None, *, now: datetime) -> str:
    """How far away a moment is, on either side of now."""
    if at is None:
        return "-"
    seconds = (at - now).total_seconds()
    return f"in {wording.duration(seconds)}" if seconds >= 0 else f"due {wording.duration(-seconds)} ago"


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


def what(run: Run) -> str:
    """Which tick or trigger a run is."""
    moment = stamp(run.tick_at)
    if run.ticks > 1:
        return f"{run.ticks:,} ticks from {moment}"
    return moment if run.kind is RunKind.TICK else f"{moment} ({run.kind})"


def why(run: Run) -> str:
    """Why a run ended as it did, on one line."""
    return "" if run.reason is None else wording.printable(mask_url(run.reason))


def past(run: Run, *, now: datetime) -> str:
    """How long ago a run ended, or else began or fell due."""
    moment = run.ended_at or run.started_at or run.due_at
    away = (now - moment).total_seconds()
    return f"{wording.duration(away)} ago" if away >= 0 else until(moment, now=now)


# -- arguments ---------------------------------------------------------------------------------------


def shown(value: Any) -> JSON:
    """Arguments of a job as people may see them: what a name gives away as a secret is masked.

    Declaring one is refused already; this is for those that got in by another way. A reference shows as it is.
    """
    if isinstance(value, Mapping):
        return {
            str(key): MASK if _is_secret(str(key), inner) else shown(inner) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [shown(inner) for inner in value]
    return masked(value)


def _is_secret(name: str, value: Any) -> bool:
    is_reference = isinstance(value, str) and _REFERENCE.fullmatch(value) is not None
    return names_secret(name) and value not in (None, "") and not isinstance(value, bool) and not is_reference
