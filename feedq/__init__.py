"""feedq keeps every feed running on exactly one worker and lands its data exactly once; and it runs jobs on a
schedule, once per tick on the whole cluster.

Imports nothing heavy: ``celery -A feedq`` finds the app in :mod:`feedq.celery.application`. What the code of a
job uses is imported when it is first asked for: ``from feedq import run_context``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedq.errors import RunCancelled
    from feedq.worker.jobs.context import RunContext, run_context

__all__ = ["RunCancelled", "RunContext", "__version__", "run_context"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "RunCancelled":
        from feedq.errors import RunCancelled

        return RunCancelled
    if name in ("RunContext", "run_context"):
        from feedq.worker.jobs import context

        return getattr(context, name)
    raise AttributeError(f"module 'feedq' has no attribute {name!r}")
