"""What a command works on: the store, the clock, and whether it speaks JSON.

One `Invocation` a call of the command travels as click's context object. Tests pass their own, with a store in
memory: ``main(args, obj=Invocation(store=…))``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import click

from feedq.clock import Clock, SystemClock
from feedq.errors import FeedqError, InvalidInput, NotFound, SchemaBehind, Unavailable

if TYPE_CHECKING:
    from feedq.model import Feed
    from feedq.settings import Settings
    from feedq.sinks.base import Sink
    from feedq.store.base import Store
    from feedq.store.insight import FleetState, JobState
    from feedq.store.jobs.base import JobStore
    from feedq.store.postgresql import PostgresStore

POLL_INTERVAL_S = 0.2
"""How often ``--wait`` looks again: short beside the second that a handover takes."""

# Whatever is more than a few lines is imported where it is used: settings, log and driver take half a second of
# processor time to load, and `feedq --version` is asked often, by scripts and completion.

Command = TypeVar("Command", bound=Callable[..., Any])


def open_store() -> PostgresStore:
    """The control database of FEEDQ_DATABASE_URL. Connects when first used."""
    from feedq.settings import settings
    from feedq.store.postgresql import PostgresStore
    from feedq.telemetry import configure_logging

    # The log goes to standard error, and only what a person should know.
    configure_logging(settings().model_copy(update={"log_level": "WARNING"}))
    return PostgresStore(settings().database_url.get_secret_value(), application_name="feedq-cli")


@dataclass(slots=True)
class Invocation:
    """State of one call of the command."""

    json: bool = False
    clock: Clock = field(default_factory=SystemClock)
    injected_store: Store | None = None
    injected_fleet: FleetState | None = None
    """What `fleet_state` answers when the store was injected."""
    injected_jobs: JobStore | None = None
    """Schedules and runs beside an injected store."""
    injected_job_state: JobState | None = None
    """What `job_state` answers when the store was injected."""
    injected_sinks: Mapping[str, Sink] | None = None
    """Sinks by name, in place of those of the settings."""
    _opened: PostgresStore | None = None

    @property
    def settings(self) -> Settings:
        from feedq.settings import settings

        return settings()

    @property
    def store(self) -> Store:
        return self._open() if self.injected_store is None else self.injected_store

    @property
    def jobs(self) -> JobStore:
        """Schedules, runs and job queues."""
        return self._open().jobs if self.injected_jobs is None else self.injected_jobs

    def _open(self) -> PostgresStore:
        if self._opened is None:
            self._opened = open_store()
            click.get_current_context().call_on_close(self._opened.close)
        return self._opened

    @property
    def has_sinks(self) -> bool:
        """Whether sinks can be asked: those of the settings, unless only a store was injected."""
        return self.injected_store is None or self.injected_sinks is not None

    @contextmanager
    def open_sink(self, name: str) -> Iterator[Sink]:
        """A session with a named sink database. Raises `InvalidInput` when it is not set up here."""
        if self.injected_sinks is not None:
            yield self.injected_sinks[name]
            return
        from feedq.sinks.base import load_sink

        url = self.settings.sink_url(name)
        sink = load_sink(url)(url, environment=self.settings.environment, worker_id=uuid4(), role="cli")
        try:
            yield sink
        finally:
            sink.close()

    def fleet_state(self) -> FleetState | None:
        """None when there is no telling."""
        if self.injected_store is not None:
            return self.injected_fleet
        from feedq.store.insight import fleet_state

        return fleet_state(self.settings.database_url.get_secret_value())

    def job_state(self) -> JobState | None:
        """None when there is no telling."""
        if self.injected_store is not None:
            return self.injected_job_state
        from feedq.store.insight import job_state

        return job_state(self.settings.database_url.get_secret_value())

    def database_now(self) -> datetime:
        """The clock that schedules go by."""
        return self._open().now() if self.injected_store is None else self.clock.now()

    def live_feed(self, name: str) -> Feed:
        """Raises `NotFound` when there is no feed of that name, or it is being removed."""
        found = self.store.feeds.get(name)
        if found.removed_at is not None:
            raise NotFound(f"feed {name!r} is being removed")
        return found

    def explain(self, error: FeedqError) -> str:
        """The line that a person sees of an error."""
        if (
            self._opened is not None
            and isinstance(error, Unavailable)
            and not isinstance(error, SchemaBehind)
        ):
            return (
                f"{error}; start it, or set FEEDQ_DATABASE_URL to the one that is meant "
                "(`feedq doctor` checks every part)"
            )
        return str(error)

    def confirm(self, question: str) -> None:
        """Ask on the terminal; where nobody can answer, refuse. Raises `InvalidInput` or `click.Abort`."""
        if self.json or not sys.stdin.isatty():
            raise InvalidInput(f"{question} There is nobody to ask here; say --yes")
        click.confirm(question, abort=True, err=True)

    def wait_until(
        self,
        condition: Callable[[], bool],
        *,
        timeout_s: float,
        what: str,
        why: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Look until the condition holds. Raises `FeedqError`, which says ``why``, when it takes too long."""
        deadline = self.clock.monotonic() + timeout_s
        while not condition():
            if self.clock.monotonic() >= deadline:
                late = f"{what}: not within {timeout_s:g} s; it may still happen"
                reason = why()
                raise FeedqError(late if reason is None else f"{late}. {reason}")
            time.sleep(POLL_INTERVAL_S)


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


def json_option(command: Command) -> Command:
    """``--json``, on the root and on each command alike."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.ensure_object(Invocation).json = True

    return click.option(
        "--json",
        "json_",
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Print one JSON document instead of text.",
    )(command)


def wait_options(command: Command) -> Command:
    """``--wait`` and ``--timeout``."""
    timeout = click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="With --wait: give up after this long.",
    )
    return click.option("--wait", is_flag=True, help="Return only once it has happened.")(timeout(command))
