"""What a command works on: the control database or a server that does verbs, the clock, and the form of answers.

One `Invocation` a call of the command travels as click's context object. Tests pass one of their own, with a store
in memory: ``main(args, obj=…)``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, wraps
from importlib import import_module
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
    from feedq.core import authorship, roles, values
    from feedq.sinks import base as sinks_base
    from feedq.telemetry import logs
    from feedq.verbs import registry, wording

P = ParamSpec("P")
T = TypeVar("T")

STACK_DIR = Path(".feedq")
"""Where `feedq up` keeps what it needs, unless told otherwise."""
LISTED_MAX = 1_000_000
"""Items of a list that are held in memory, and more than anybody reads."""
DURATION_MAX_S = 100 * 365 * 86_400.0
"""A century: dates that far from now can still be told, and more is mistyped."""
POLL_INTERVAL_S = 0.2
"""How often ``--wait`` looks again: short beside the second that a handover takes."""

LOCAL: Final = frozenset({"up", "env", "api", "db upgrade", "db grants", "feed test", "lint", "completion"})
"""Commands that ask no API, though one is named: they start or set up something, or work with what is here."""
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Form(StrEnum):
    """How a command answers."""

    TEXT = "text"
    WIDE = "wide"
    NAME = "name"
    JSON = "json"


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


class Duration(click.ParamType[float]):
    """Seconds, written as ``90``, ``90s``, ``1m30s`` or ``2h``."""

    name = "duration"

    def __init__(self, least_s: float = 0.0, most_s: float = DURATION_MAX_S) -> None:
        self._least_s, self._most_s = least_s, most_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            found = float(value) if not isinstance(value, str) else values.parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._least_s <= found <= self._most_s:
            self.fail(
                f"{value!r} is not from {self._least_s:.12g} to {self._most_s:.12g} seconds", param, ctx
            )
        return found


@dataclass(slots=True)
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
    _opened: postgresql.PostgresStore | None = None
    _api: doing.ApiConnection | None = None
    _told: registry.Told | None = None

    @property
    def json(self) -> bool:
        """Whether a document is printed and no text."""
        return self.form is Form.JSON

    @property
    def settings(self) -> configuration.Settings:
        self._require_database()
        self._use_stack()
        return configuration.settings()

    def _use_stack(self) -> None:
        """Take the settings of the `feedq up` that runs in this directory, unless the environment has some."""
        directory, self.stack_dir = self.stack_dir, None
        if directory is None or "FEEDQ_DATABASE_URL" in os.environ:
            return
        if settings := stack_settings(directory):
            os.environ |= settings
            click.echo(f"(the feedq up that runs in {directory.absolute()})", err=True)

    def _require_database(self) -> None:
        """Raises `InvalidInput` when a server is to be asked, for what no server does."""
        if self.server is not None:
            raise InvalidInput(
                f"`{click.get_current_context().command_path}` asks no API. Leave --server and FEEDQ_SERVER out, "
                "and do it where the database is reached"
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
        if self._api is None:
            self._api = doing.ApiConnection(self.server, doing.token_of())
            click.get_current_context().call_on_close(self._api.close)
        return self._api.do(verb, arguments, self._told)

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

    @property
    def store(self) -> postgresql.PostgresStore:
        """The control database, which connects when first used. Raises `InvalidInput` when a server is to be
        asked."""
        if self._opened is None:
            url = self.settings.database_url.get_secret_value()
            self._opened = postgresql.PostgresStore(url, application_name="feedq-cli")
            click.get_current_context().call_on_close(self._opened.close)
        return self._opened

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
            raise InvalidInput(f"{question} There is nobody to ask here; say --yes")

        click.confirm(wording.printable(question), abort=True, err=True)

    def do_confirmed(
        self,
        function: Callable[Concatenate[registry.At, P], T],
        question: Callable[[T], str | None],
        *,
        yes: bool,
        **asked: Any,
    ) -> T:
        """Have a verb done once somebody has agreed to what its dry run says. Raises as `do` and `confirm`."""
        do: Callable[..., T] = self.do
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


# -- options that commands share -------------------------------------------------------------------------


def _remember_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Invocation).form = Form.JSON


def _remember_form(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Invocation).form = Form(value)


def _remember_server(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    invocation = ctx.ensure_object(Invocation)
    is_said = ctx.get_parameter_source(str(param.name)) is click.core.ParameterSource.COMMANDLINE
    if value and (is_said or invocation.server is None):
        invocation.server, invocation.is_server_said = value, is_said


SHARED: Final = (
    click.Option(
        ["--json", "json_"],
        is_flag=True,
        expose_value=False,
        callback=_remember_json,
        help="Print one JSON document instead of text.",
    ),
    click.Option(
        ["-o", "--output"],
        type=click.Choice([Form.WIDE.value, Form.NAME.value]),
        expose_value=False,
        callback=_remember_form,
        help="Print lists so: wide has more columns, name only names.",
    ),
    click.Option(
        ["--server"],
        envvar="FEEDQ_SERVER",
        metavar="URL",
        expose_value=False,
        callback=_remember_server,
        help="Ask this API in the place of the database, with the token in FEEDQ_TOKEN or the file "
        "FEEDQ_TOKEN_FILE.",
    ),
)
"""Options of the root that all commands take too: they may stand at any place of a line."""


class Command(click.Command):
    """A command that takes the shared options."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, asking_help = super().get_params(ctx)
        return [*own, *SHARED, asking_help]

    def invoke(self, ctx: click.Context) -> Any:
        ctx.ensure_object(Invocation).begin(ctx.command_path)
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            # Verbs speak of their arguments, people of options.
            argument, colon, what = str(error).partition(": ")
            for param in self.params:
                if colon and param.name == argument and isinstance(param, click.Option):
                    raise InvalidInput(f"{param.opts[-1]}: {what}") from error
            raise


class Group(click.Group):
    """A group of commands that take the shared options, and takes them itself."""

    command_class = Command
    group_class = type

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, asking_help = super().get_params(ctx)
        return [*own, *SHARED, asking_help]


pass_invocation: Decorator = click.make_pass_decorator(Invocation, ensure=True)
"""Hands a command its `Invocation`."""


def reason_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--reason``, for commands that change something: history has it beside who asked, and from where."""

    def remember(_: click.Context, __: click.Parameter, value: str | None) -> None:
        authorship.give_reason(value)

    return click.option(
        "--reason", expose_value=False, callback=remember, help="Why; history and pages show it."
    )(command)


def decorated(*options: Decorator) -> Decorator:
    """Joins options that several commands share into one decorator."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


changes: Decorator = decorated(reason_option, pass_invocation)
"""Of a command that changes something."""


def wait_options(default_s: float = 30.0) -> Decorator:
    """Makes ``--wait`` and ``--timeout``."""
    return decorated(
        click.option("--wait", is_flag=True, help="Return only once it has happened."),
        click.option(
            "--timeout",
            "timeout_s",
            type=Duration(),
            default=default_s,
            help="With --wait: give up after this long.",
        ),
    )


def has_verbs(**parameters: str) -> Decorator:
    """Gives a command several verbs, each with the parameters that it takes; the verb is its first argument."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def call(*args: Any, verb: str, **given: Any) -> Any:
            ctx = click.get_current_context()
            for param in ctx.command.params:
                is_given = ctx.get_parameter_source(str(param.name)) is click.core.ParameterSource.COMMANDLINE
                if is_given and given.get(str(param.name)) and param.name not in parameters[verb].split():
                    raise click.UsageError(f"{param.get_error_hint(ctx)} is not for {verb}")
            return command(*args, verb=verb, **given)

        return click.argument("verb", type=click.Choice(list(parameters)))(call)

    return decorate


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def limit_option(default: int | None, what: str = "How many, newest first.") -> Decorator:
    """Makes the ``--limit`` of a list; `feedq.cli.output.answer_list` says when there is more."""
    return click.option("--limit", type=click.IntRange(1, LISTED_MAX), default=default, help=what)
