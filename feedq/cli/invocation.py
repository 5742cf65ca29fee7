"""What a command works on: the control database or a server that does verbs, the clock, and the form of answers.

One `Invocation` a call of the command travels as click's context object. Tests pass one of their own, with a store
in memory: ``main(args, obj=…)``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import click

from feedq.cli.lazily import lazily
from feedq.core.clock import Clock, SystemClock
from feedq.errors import FeedqError, InvalidInput, Unavailable

with lazily():
    from feedq import settings as configuration
    from feedq.cli import doing, output
    from feedq.control.store import postgresql
    from feedq.core import roles
    from feedq.sinks import base as sinks_base
    from feedq.telemetry import logs
    from feedq.verbs import registry, wording

P = ParamSpec("P")
T = TypeVar("T")

STACK_DIR = Path(".feedq")
"""Where `feedq up` keeps what it needs, unless told otherwise."""
POLL_INTERVAL_S = 0.2
"""How often ``--wait`` looks again: short beside the second that a handover takes."""

LOCAL: Final = frozenset({"up", "env", "api", "db upgrade", "db grants", "feed test", "lint", "completion"})
"""Commands that ask no API, though one is named: they start or set up something, or work with what is here."""


class Form(StrEnum):
    """How a command answers."""

    TEXT = "text"
    WIDE = "wide"
    NAME = "name"
    JSON = "json"


@dataclass
class Invocation:
    """Holds the state of one call of the command."""

    form: Form = Form.TEXT
    clock: Clock = field(default_factory=SystemClock)
    stack_dir: Path | None = STACK_DIR
    """Where a `feedq up` may run whose settings are used when there are none."""
    server: str | None = None
    """The API that is asked in the place of the database."""
    is_server_said: bool = False
    """Whether it was named on the command line, and so is meant for this command."""
    _told: registry.Told | None = None

    @property
    def json(self) -> bool:
        """Whether a document is printed and no text."""
        return self.form is Form.JSON

    @cached_property
    def settings(self) -> configuration.Settings:
        """Those of the environment or, if it has none, of the `feedq up` that runs in this directory. Raises
        `InvalidInput` when a server is to be asked."""
        self._require_database()
        there = self.stack_dir
        if there and "FEEDQ_DATABASE_URL" not in os.environ and (found := stack_settings(there)):
            os.environ |= found
            click.echo(f"(using the feedq up in {there.absolute()})", err=True)
        return configuration.settings()

    def _require_database(self) -> None:
        """Raises `InvalidInput` when a server is to be asked, for what no server does."""
        if self.server is not None:
            raise InvalidInput(
                f"`{click.get_current_context().command_path}` cannot use an API. Run it without --server and "
                "FEEDQ_SERVER, where the database can be reached"
            )

    def begin(self, path: str) -> None:
        """Raises `InvalidInput` for a command that asks no server although one is named for it."""
        if self.is_server_said and path.partition(" ")[2] in LOCAL:
            self._require_database()

    # -- verbs ---------------------------------------------------------------------------------------

    def do(self, function: Callable[Concatenate[registry.At, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have a verb done. Raises what the verb raises, and `Unavailable` when the server cannot be asked."""
        found: T = self.do_named(registry.OF[function], kwargs)
        return found

    def do_named(self, verb: registry.Verb, given: Mapping[str, Any]) -> Any:
        """Have a verb done with arguments that nobody has checked yet. Raises as `do`, and `InvalidInput`."""
        arguments = verb.parse(given)
        if self.server is None:
            return verb.call(self.at(self._told), arguments)
        return self._api.do(verb, arguments, self._told)

    @cached_property
    def _api(self) -> doing.ApiConnection:
        assert self.server is not None
        made = doing.ApiConnection(self.server, doing.token_of())
        click.get_current_context().call_on_close(made.close)
        return made

    def pages(
        self,
        function: Callable[Concatenate[registry.At, P], registry.Page[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Iterator[T]:
        """The items of a list, whose pages are asked for as somebody gets to them. Raises as `do`."""
        asked: dict[str, Any] = {**kwargs, "limit": registry.PAGE_MAX, "cursor": None}
        while True:
            page = self.do_named(registry.OF[function], asked)
            yield from page.items
            if page.next is None:
                return
            asked["cursor"] = page.next

    @contextmanager
    def progress(self, what: str) -> Iterator[None]:
        """Shows how far the verbs that are done within the block have come."""
        with output.ProgressLine(what) as self._told:
            try:
                yield
            finally:
                self._told = None

    def at(self, told: registry.Told | None) -> registry.At:
        """Where verbs are done that are done here, by somebody who may do everything."""
        caller = roles.Caller("this command", roles.AccessRole.ADMIN)
        at = registry.At(self.store, self.settings, caller, self.open_sink)
        return at if told is None else replace(at, told=told)

    # -- what is done here ---------------------------------------------------------------------------

    @cached_property
    def store(self) -> postgresql.PostgresStore:
        """The control database, which connects when first used. Raises `InvalidInput` when a server is to be
        asked."""
        url = self.settings.database_url.get_secret_value()
        opened = postgresql.PostgresStore(url, application_name="feedq-cli")
        click.get_current_context().call_on_close(opened.close)
        return opened

    def keep_log_quiet(self) -> None:
        """The log, also that of libraries, goes to standard error, and only what a person should know.

        For commands that load what logs: telemetry takes a while to load, and most do without.
        """
        logs.configure_logging(self.settings.model_copy(update={"log_level": "WARNING"}))

    @contextmanager
    def open_sink(self, name: str) -> Iterator[sinks_base.Sink]:
        """Opens a session with a named sink database. Raises `InvalidInput` when it is not set up here."""
        self.keep_log_quiet()
        with sinks_base.opened_sink(self.settings, name, role="cli") as sink:
            yield sink

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask on the terminal unless ``yes`` was said; where nobody can answer, refuse.

        Raises `InvalidInput` or `click.Abort`.
        """
        if yes:
            return
        if self.json or not sys.stdin.isatty():
            raise InvalidInput(f"{question} There is no terminal to answer on; pass --yes")

        click.confirm(wording.printable(question), abort=True, err=True)

    def do_confirmed(
        self,
        function: Callable[Concatenate[registry.At, P], T],
        question: Callable[[T], str | None],
        *,
        yes: bool,
        dry_run: bool = False,
        **asked: Any,
    ) -> T:
        """Have a verb done once somebody has agreed to what its dry run says, or the dry run alone.

        Raises as `do` and `confirm`."""
        do: Callable[..., T] = self.do
        if dry_run:
            return do(function, **asked, dry_run=True)
        if not yes and (text := question(do(function, **asked, dry_run=True))):
            self.confirm(text, yes=False)
        return do(function, **asked)

    def wait_for(
        self,
        look: Callable[[], T],
        is_over: Callable[[T], bool],
        *,
        timeout_s: float,
        what: str,
        why: Callable[[T], str | None] = lambda seen: None,
    ) -> T:
        """Looks again and again until it is over, and returns what it saw last. Raises `FeedqError`, which says
        ``why``, when it takes too long."""
        deadline = self.clock.monotonic() + timeout_s
        while not is_over(seen := look()):
            if self.clock.monotonic() >= deadline:
                reason = why(seen)
                late = f"{what}: not within {timeout_s:g} s; it may still happen"
                raise FeedqError(late if reason is None else f"{late}. {reason}")
            time.sleep(POLL_INTERVAL_S)
        return seen


def stack_settings(directory: Path) -> dict[str, str]:
    """The settings of the `feedq up` that runs in a directory; none when none does, or it is somebody else's."""
    if not (directory / "up.lock").exists():
        return {}
    try:
        from feedq.local.datadir import DataDir

        return DataDir(directory).settings()
    except (ImportError, OSError, ValueError, TypeError, Unavailable):
        return {}
