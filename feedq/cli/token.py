"""`feedq token`: who may ask the HTTP API, and what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from feedq.cli.invocation import Invocation, OneOf, changes, pass_invocation
from feedq.cli.options import duration
from feedq.cli.output import TableColumn, answer, answer_list
from feedq.errors import InvalidInput

if TYPE_CHECKING:
    from feedq.core.roles import AccessRole, AccessToken

DAY_S = 86_400.0


@click.group(short_help="Tokens of the HTTP API: add, list, remove.")
def token() -> None:
    """Tokens of the HTTP API, each with a role, and with an end.

    \b
    Example:
      feedq token add ada --role operator --for 90d
    """


@token.command()
@click.argument("name")
@click.option(
    "--role",
    type=OneOf("feedq.core.roles:AccessRole"),
    required=True,
    help="viewer looks; operator does what this command line does; admin also gives out tokens.",
)
@click.option("--tenant", help="Over this tenant's feeds, and nothing else. [default: over everything]")
@click.option(
    "--for", "for_", metavar="DURATION", default="90d", show_default=True, help="How long it lasts."
)
@changes
def add(invocation: Invocation, *, name: str, role: AccessRole, tenant: str | None, for_: str) -> None:
    """Make a token and print it. It is not kept, only its hash: nobody can print it again.

    \b
    Example:
      feedq token add acme-ci --role operator --tenant acme --for 30d
    """
    from feedq.control.store.tokens import DAYS_MAX
    from feedq.verbs.tokens import add_token

    days = duration(for_, option="--for") / DAY_S
    if not 0 < days <= DAYS_MAX:
        raise InvalidInput(f"--for: {for_!r} must be longer than nothing, and at most {DAYS_MAX}d")
    made = invocation.do(add_token, name=name, role=role, tenant=tenant, days=days)
    answer(invocation, made, made.token)


@token.command("list")
@pass_invocation
def list_(invocation: Invocation) -> None:
    """All tokens by name, with their roles and ends.

    \b
    Example:
      feedq token list
    """
    from feedq.verbs.tokens import list_tokens
    from feedq.verbs.wording import stamp

    columns: list[TableColumn[AccessToken]] = [
        TableColumn("NAME", lambda one: one.name),
        TableColumn("ROLE", lambda one: one.role.value),
        TableColumn("TENANT", lambda one: one.tenant),
        TableColumn("CREATED", lambda one: stamp(one.created_at)),
        TableColumn("ENDS", lambda one: stamp(one.expires_at)),
    ]
    empty = "no tokens; `feedq token add` makes one"
    answer_list(invocation, invocation.do(list_tokens).items, columns, empty=empty)


@token.command()
@click.argument("names", nargs=-1, required=True)
@changes
def remove(invocation: Invocation, *, names: tuple[str, ...]) -> None:
    """End tokens at once.

    \b
    Example:
      feedq token remove acme-ci
    """
    from feedq.verbs.tokens import remove_token

    removed = [invocation.do(remove_token, name=name) for name in dict.fromkeys(names)]
    answer(invocation, removed, "\n".join(f"{one.name} removed" for one in removed))
