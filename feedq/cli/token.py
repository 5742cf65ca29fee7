"""`feedq token`: who may ask the HTTP API, and what."""

from __future__ import annotations

import click

from feedq.cli.invocation import Duration, Group, Invocation, OneOf, changes, pass_invocation
from feedq.cli.lazily import lazily
from feedq.cli.output import TableColumn, answer, answer_list

with lazily():
    from feedq.core import roles
    from feedq.verbs import tokens, wording


DAY_S = 86_400.0


@click.group(cls=Group, short_help="Tokens of the HTTP API: add, list, remove.")
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
    "--for", "lasts_s", type=Duration(), default="90d", show_default=True, help="How long it lasts."
)
@changes
def add(
    invocation: Invocation, *, name: str, role: roles.AccessRole, tenant: str | None, lasts_s: float
) -> None:
    """Make a token and print it. It is not kept, only its hash: nobody can print it again.

    \b
    Example:
      feedq token add acme-ci --role operator --tenant acme --for 30d
    """
    made = invocation.do(tokens.add_token, name=name, role=role, tenant=tenant, days=lasts_s / DAY_S)
    answer(invocation, made, made.token)


@token.command("list")
@pass_invocation
def list_(invocation: Invocation) -> None:
    """All tokens by name, with their roles and ends.

    \b
    Example:
      feedq token list
    """
    columns: list[TableColumn[roles.AccessToken]] = [
        TableColumn("NAME", lambda one: one.name),
        TableColumn("ROLE", lambda one: one.role.value),
        TableColumn("TENANT", lambda one: one.tenant),
        TableColumn("CREATED", lambda one: wording.stamp(one.created_at)),
        TableColumn("ENDS", lambda one: wording.stamp(one.expires_at)),
    ]
    empty = "no tokens; `feedq token add` makes one"
    answer_list(invocation, invocation.do(tokens.list_tokens).items, columns, empty=empty)


@token.command()
@click.argument("names", nargs=-1, required=True)
@changes
def remove(invocation: Invocation, *, names: tuple[str, ...]) -> None:
    """End tokens at once.

    \b
    Example:
      feedq token remove acme-ci
    """
    removed = [invocation.do(tokens.remove_token, name=name) for name in dict.fromkeys(names)]
    answer(invocation, removed, "\n".join(f"{one.name} removed" for one in removed))
