"""Commands and groups, and the options and types of options that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cached_property, wraps
from importlib import import_module
from typing import Any, Final

import click

from feedq.cli.invocation import Form, Invocation
from feedq.cli.lazily import lazily
from feedq.errors import InvalidInput

with lazily():
    from feedq.core import authorship, json_texts, values

LISTED_MAX = 1_000_000
"""Items of a list that are held in memory, and more than anybody reads."""
DURATION_MAX_S = 100 * 365 * 86_400.0
"""A century: dates that far from now can still be told, and more is mistyped."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


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


def split_assignment(text: str, *, option: str) -> tuple[str, str]:
    """Splits ``key=value`` in two. Raises `InvalidInput`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidInput(f"{option} {text!r}: write it as KEY=VALUE".lstrip())
    return key, value


def read_cursor(text: str) -> Any:
    """Reads a cursor: JSON, or else a text."""
    with suppress(ValueError, RecursionError):
        return json_texts.read_exactly(text)
    return text


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
        help="Format of lists: wide adds columns, name prints names only.",
    ),
    click.Option(
        ["--server"],
        envvar="FEEDQ_SERVER",
        metavar="URL",
        expose_value=False,
        callback=_remember_server,
        help="Use this API instead of the database, with the token in FEEDQ_TOKEN or in the file "
        "FEEDQ_TOKEN_FILE.",
    ),
)
"""Options of the root that all commands take too: they may stand at any place of a line."""


class Command(click.Command):
    """A command that takes the shared options. Its function gets the `Invocation` before its own parameters."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, asking_help = super().get_params(ctx)
        return [*own, *SHARED, asking_help]

    def invoke(self, ctx: click.Context) -> Any:
        invocation = ctx.ensure_object(Invocation)
        invocation.begin(ctx.command_path)
        assert self.callback is not None
        try:
            return ctx.invoke(self.callback, invocation, **ctx.params)
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


def command(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], Command]:
    """Makes a command of its own, in no group."""
    return click.command(name, Command, **attributes)


def group(**attributes: Any) -> Callable[[Callable[..., Any]], Group]:
    """Makes a group of commands."""
    return click.group(cls=Group, **attributes)


def _remember_reason(_: click.Context, __: click.Parameter, value: str | None) -> None:
    authorship.give_reason(value)


changes: Decorator = click.option(
    "--reason", expose_value=False, callback=_remember_reason, help="Why; kept in history."
)
"""Of a command that changes something: history has the reason beside who asked, and from where."""


def decorated(*options: Decorator) -> Decorator:
    """Joins options that several commands share into one decorator."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def waits(default_s: float = 30.0) -> Decorator:
    """Makes ``--wait`` and ``--timeout``."""
    return decorated(
        click.option("--wait", is_flag=True, help="Wait until it is done."),
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


yes: Decorator = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def limit(default: int | None, what: str = "How many, newest first.") -> Decorator:
    """Makes the ``--limit`` of a list; `feedq.cli.output.answer_list` says when there is more."""
    return click.option("--limit", type=click.IntRange(1, LISTED_MAX), default=default, help=what)
