"""What a command works on: where it has verbs done, the clock, and whether it speaks JSON.

One `Invocation` a call of the command travels as click's context object. Tests pass one of their own, with a store
in memory: ``main(args, obj=…)``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from feedq.core.clock import Clock, SystemClock
from feedq.errors import FeedqError, InvalidInput, SchemaBehind, Unavailable

if TYPE_CHECKING:
    from feedq.cli.doing import Doing
    from feedq.control.store.postgresql import PostgresStore
    from feedq.settings import Settings
    from feedq.sinks.base import Sink
    from feedq.verbs.registry import At, Page, Told

P = ParamSpec("P")
T = TypeVar("T")

STACK_DIR = Path(".feedq")
"""Where `feedq up` keeps what it needs, unless told otherwise."""
WATCH_S = 2.0
POLL_INTERVAL_S = 0.2
"""How often ``--wait`` looks again: short beside the second that a handover takes."""

# Whatever is more than a few lines is imported where it is used: settings, log and driver take half a second of
# processor time to load, and `feedq --version` is asked often, by scripts and completion.

Command = TypeVar("Command", bound=Callable[..., Any])


def open_store() -> PostgresStore:
    """Opens the control database of FEEDQ_DATABASE_URL, which connects when first used."""
    from feedq.control.store.postgresql import PostgresStore
    from feedq.settings import settings

    return PostgresStore(settings().database_url.get_secret_value(), application_name="feedq-cli")


class Form(StrEnum):
    """How a command answers."""

    TEXT = "text"
    WIDE = "wide"
    NAME = "name"
    JSON = "json"
    YAML = "yaml"


class OneOf(click.Choice[str]):
    """A value of an enumeration, written ``module:Name``, which is imported only once somebody needs it."""

    def __init__(self, place: str) -> None:
        self._place = place
        self.case_sensitive = True

    @cached_property
    def _kind(self) -> type[StrEnum]:
        module, _, name = self._place.partition(":")
        kind: type[StrEnum] = getattr(import_module(module), name)
        return kind

    @property
    def choices(self) -> Sequence[str]:  # type: ignore[override] # click keeps a list
        return [one.value for one in self._kind]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if ctx is not None and ctx.resilient_parsing:
            return value
        return self._kind(super().convert(value, param, ctx))


@dataclass(slots=True)
class Invocation:
    """Holds the state of one call of the command."""

    json: bool = False
    """Whether a document is printed and no text; as YAML, if ``form`` is that."""
    form: Form = Form.TEXT
    clock: Clock = field(default_factory=SystemClock)
    stack_dir: Path | None = STACK_DIR
    """Where a `feedq up` may run whose settings are used when there are none."""
    server: str | None = None
    """The API that is asked in the place of the database."""
    _opened: PostgresStore | None = None
    _doing: Doing | None = None

    @property
    def settings(self) -> Settings:
        from feedq.settings import settings

        self.require_database()
        self._use_stack()
        return settings()

    def _use_stack(self) -> None:
        """Take the settings of the `feedq up` that runs in this directory, unless the environment has some."""
        directory, self.stack_dir = self.stack_dir, None
        if directory is None or "FEEDQ_DATABASE_URL" in os.environ or not (directory / "up.lock").exists():
            return
        try:
            from feedq.local.datadir import DataDir

            settings = DataDir(directory).settings()
        except (ImportError, OSError, ValueError, TypeError, Unavailable):
            return  # none runs, or it is somebody else's
        os.environ |= settings
        click.echo(f"(the feedq up that runs in {directory.absolute()})", err=True)

    def require_database(self) -> None:
        """Raises `InvalidInput` when a server is to be asked, for what no server does."""
        if self.server is not None:
            from feedq.cli.root import not_served

            _, _, path = click.get_current_context().command_path.partition(" ")
            raise not_served(path)

    # -- verbs ---------------------------------------------------------------------------------------

    def do(self, function: Callable[Concatenate[At, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have a verb done, at the control database or at the server. Raises what the verb raises."""
        return self.doing.do(function, *args, **kwargs)

    def pages(
        self,
        most: int | None,
        function: Callable[Concatenate[At, P], Page[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Iterator[T]:
        """The first so many items of a list, or all of them, page by page."""
        return self.doing.pages(most, function, *args, **kwargs)

    @contextmanager
    def progress(self, what: str) -> Iterator[None]:
        """Shows how far the verbs that are done within the block have come."""
        from feedq.cli.output import ProgressBar

        with ProgressBar(what) as bar:
            self.doing.told = bar
            try:
                yield
            finally:
                self.doing.told = None

    @property
    def doing(self) -> Doing:
        if self._doing is None:
            from feedq.cli.doing import Doing, at_database, at_server

            if self.server is None:
                self._doing = Doing(at_database(self.at))
            else:
                from feedq.cli.api_client import ApiConnection, token_of

                api = ApiConnection(self.server, token_of())
                click.get_current_context().call_on_close(api.close)
                self._doing = Doing(at_server(api))
        return self._doing

    def at(self, told: Told | None) -> At:
        """Where verbs are done that are done here, by somebody who may do everything."""
        from feedq.core.roles import AccessRole, Caller
        from feedq.verbs.registry import At

        at = At(self.store, self.settings, Caller("this command", AccessRole.ADMIN), self.open_sink)
        return at if told is None else replace(at, told=told)

    # -- what is done here ---------------------------------------------------------------------------

    @property
    def store(self) -> PostgresStore:
        """The control database. Raises `InvalidInput` when a server is to be asked."""
        self.require_database()
        if self._opened is None:
            self._use_stack()
            self._opened = open_store()
            click.get_current_context().call_on_close(self._opened.close)
        return self._opened

    def keep_log_quiet(self) -> None:
        """The log, also that of libraries, goes to standard error, and only what a person should know.

        For commands that load what logs: telemetry takes a while to load, and most do without.
        """
        from feedq.telemetry.logs import configure_logging

        configure_logging(self.settings.model_copy(update={"log_level": "WARNING"}))

    @contextmanager
    def open_sink(self, name: str) -> Iterator[Sink]:
        """Opens a session with a named sink database. Raises `InvalidInput` when it is not set up here."""
        from feedq.sinks.base import opened_sink

        self.keep_log_quiet()
        with opened_sink(self.settings, name, role="cli") as sink:
            yield sink

    def explain(self, error: FeedqError) -> str:
        """Makes the line that a person sees of an error."""
        if (
            self._opened is not None
            and isinstance(error, Unavailable)
            and not isinstance(error, SchemaBehind)
        ):
            return f"{error} (`feedq doctor` checks every part)"
        return str(error)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask on the terminal unless ``yes`` was said; where nobody can answer, refuse.

        Raises `InvalidInput` or `click.Abort`.
        """
        if yes:
            return
        if self.json or not sys.stdin.isatty():
            raise InvalidInput(f"{question} There is nobody to ask here; say --yes")
        from feedq.verbs.wording import printable

        click.confirm(printable(question), abort=True, err=True)

    def wait_until(
        self,
        condition: Callable[[], bool],
        *,
        timeout_s: float,
        what: str,
        why: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Waits until the condition holds. Raises `FeedqError`, which says ``why``, when it takes too long."""
        deadline = self.clock.monotonic() + timeout_s
        while not condition():
            if self.clock.monotonic() >= deadline:
                late = f"{what}: not within {timeout_s:g} s; it may still happen"
                reason = why()
                raise FeedqError(late if reason is None else f"{late}. {reason}")
            time.sleep(POLL_INTERVAL_S)


def _remember_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Invocation).json = True


def _remember_form(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        invocation = ctx.ensure_object(Invocation)
        invocation.form = Form(value)
        invocation.json = invocation.form in (Form.JSON, Form.YAML)


FORM_OPTIONS: Final = (
    click.Option(
        ["--json", "json_"],
        is_flag=True,
        expose_value=False,
        callback=_remember_json,
        help="Print one JSON document instead of text.",
    ),
    click.Option(
        ["-o", "--output"],
        type=click.Choice([form.value for form in Form]),
        expose_value=False,
        callback=_remember_form,
        help="Print it as this; wide has more columns, name only names.",
    ),
)
"""``--json`` and ``-o FORM``, which the root and all commands share: they may stand before or after a command."""


def watchable(command: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a command that shows something show it again and again."""

    @wraps(command)
    def call(*args: Any, watch: bool, **kwargs: Any) -> Any:
        try:
            while watch:
                click.clear()  # a terminal only
                command(*args, **kwargs)
                sys.stdout.flush()
                time.sleep(WATCH_S)
        except KeyboardInterrupt:
            return None
        return command(*args, **kwargs)

    return click.option("--watch", is_flag=True, help="Show it anew every two seconds, until Ctrl-C.")(call)


def pass_invocation(command: Callable[..., Any]) -> Callable[..., Any]:
    """Hands a command its `Invocation`, and lets it take ``--json`` and ``-o``."""
    taking = click.make_pass_decorator(Invocation, ensure=True)(command)
    # As click's own decorators do it: they list parameters from the last to the first.
    taking.__dict__.setdefault("__click_params__", []).extend(reversed(FORM_OPTIONS))
    return taking


def reason_option(command: Command) -> Command:
    """``--reason``, for commands that change something: history has it beside who asked, and from where."""

    def remember(_: click.Context, __: click.Parameter, value: str | None) -> None:
        from feedq.core.authorship import give_reason

        give_reason(value)

    return click.option(
        "--reason", expose_value=False, callback=remember, help="Why; history and pages show it."
    )(command)


def decorated(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Joins options that several commands share into one decorator."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


changes = decorated(reason_option, pass_invocation)
"""Of a command that changes something."""
shows = decorated(pass_invocation, watchable)
"""Of a command that shows something as it is just now."""
wait_options = decorated(
    click.option("--wait", is_flag=True, help="Return only once it has happened."),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="With --wait: give up after this long.",
    ),
)


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def limit_option(default: int, *, most: int = 10_000) -> Callable[[Command], Command]:
    """Makes the ``--limit`` of what is listed newest first."""
    how_many = click.IntRange(1, most)
    return click.option(
        "--limit", type=how_many, default=default, show_default=True, help="How many, newest first."
    )
