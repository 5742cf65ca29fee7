"""Structured logging: every line of feedq and of its libraries goes through one formatter to standard error.

Events have names (`feedq.telemetry.event_names`); URLs are masked before a line is written.
"""

from __future__ import annotations

import logging
import logging.config
import sys
from collections.abc import Collection
from typing import Any

from feedq.core.passwords import mask_url as mask_url
from feedq.core.remedies import with_remedy
from feedq.errors import PermissionMissing
from feedq.settings import Settings
from feedq.telemetry import traces
from feedq.telemetry.event_names import EventKind as EventKind
from feedq.telemetry.event_names import LogEvent as LogEvent
from feedq.telemetry.hiding import structlog


def database_event(error: Exception) -> LogEvent:
    """What to log when the control database could not be used."""
    return LogEvent.DATABASE_REFUSES if isinstance(error, PermissionMissing) else LogEvent.DATABASE_AWAY


def log(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module; call it with `LogEvent` values and keyword fields."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


class _WithoutTasks(logging.Filter):
    """Drops what Celery logs of some tasks' comings and goings; their errors pass."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = frozenset(names)

    def filter(self, record: logging.LogRecord) -> bool:
        data = getattr(record, "data", None)
        return not (
            record.levelno <= logging.INFO and isinstance(data, dict) and data.get("name") in self._names
        )


def configure_logging(settings: Settings, *, quiet_tasks: Collection[str] = ()) -> None:
    """Send feedq's and Celery's log through one formatter to standard error, passwords masked.

    ``quiet_tasks`` say themselves what they do: Celery's two lines about each run would only be volume.
    """
    shared: list[Any] = [
        # What is bound while the code of a job runs: also to the lines that it writes by itself.
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        *([traces.name_trace] if traces.is_configured() else []),
        _mask,
    ]
    renderer = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        # What is below the level costs a call and no more: a feed has several such lines whenever it connects.
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _mask, renderer],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    if settings.log_level != "DEBUG":
        for name in ("celery.worker.strategy", "celery.app.trace"):
            logging.getLogger(name).addFilter(_WithoutTasks(quiet_tasks))
    for name in ("celery.worker.consumer.consumer", "celery.beat"):
        logging.getLogger(name).addFilter(_told_with_remedy)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)


def _told_with_remedy(record: logging.LogRecord) -> bool:
    """Has Celery's lines about a broker that does not let it in say what to do about that. A connection that is
    lost is a warning, and needs nothing done: it is made again."""
    if record.levelno >= logging.ERROR and isinstance(record.args, tuple):
        record.args = tuple(
            with_remedy(str(one), setting="FEEDQ_BROKER_URL") if isinstance(one, Exception) else one
            for one in record.args
        )
    return True


def _mask(_logger: Any, _method: str, event: Any) -> Any:
    return {key: mask_url(value) if isinstance(value, str) else value for key, value in event.items()}


# Until `configure_logging` says more: warnings only, and none on standard output, where commands answer.
structlog.configure(
    processors=[structlog.stdlib.add_log_level, _mask, structlog.dev.ConsoleRenderer(colors=False)],
    logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    wrapper_class=structlog.make_filtering_bound_logger("WARNING"),
)
