"""`feedq api`, `token` and `do`: the HTTP API as a process of its own, who may ask it, and any verb by name."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import click

from feedq.cli import options
from feedq.cli.declare import assigned
from feedq.cli.invocation import Form, Invocation
from feedq.cli.lazily import lazily
from feedq.cli.output import TableColumn, answer, answer_list, write_json_line
from feedq.errors import NotFound, Unavailable

with lazily():
    from feedq.core import roles, values
    from feedq.verbs import fleet, registry, wording

if TYPE_CHECKING:
    import socket

    from feedq.api.endpoint import Endpoint

PORT_USUAL = 5556
"""Beside Flower's 5555."""
DAY_S = 86_400.0


@options.command("api", short_help="The HTTP API, /api/v1.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=PORT_USUAL, help="Port; 0 picks a free one.")
def serve(invocation: Invocation, *, host: str, port: int) -> None:
    """Serve the HTTP API. Put TLS in front of it unless only this machine uses it.

    \b
    Example:
      feedq api --port 5556
    """
    import asyncio

    from feedq.api.endpoint import Endpoint
    from feedq.control.store.postgresql import PostgresStore
    from feedq.telemetry.logs import configure_logging

    settings = invocation.settings
    configure_logging(settings)
    store = PostgresStore(settings.database_url.get_secret_value(), application_name="feedq-api")
    listening = _listen(host, port)
    url = f"http://{_shown(host)}:{listening[0].getsockname()[1]}{registry.PREFIX}"
    answer(invocation, {"url": url}, f"the API is at {url}; Ctrl-C stops it")
    sys.stdout.flush()
    try:
        asyncio.run(_served(Endpoint.of(store, settings), listening))
    finally:
        store.close()


async def _served(endpoint: Endpoint, listening: list[socket.socket]) -> None:
    import asyncio

    from feedq.api.handler import serve

    told_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
    await serve(endpoint, listening, told_to_stop)


def _listen(host: str, port: int) -> list[socket.socket]:
    from tornado.netutil import bind_sockets

    try:
        return bind_sockets(port, host)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose others with --host and --port"
        ) from None


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# -- tokens --------------------------------------------------------------------------------------------


@options.group(short_help="Tokens of the HTTP API: add, list, remove.")
def token() -> None:
    """Tokens of the HTTP API, each with a role and an expiry.

    \b
    Example:
      feedq token add ada --role operator --for 90d
    """


@token.command()
@click.argument("name")
@click.option(
    "--role",
    type=options.OneOf("feedq.core.roles:AccessRole"),
    required=True,
    help="viewer reads; operator also changes feeds and schedules; admin also manages tokens.",
)
@click.option("--tenant", help="Only for this tenant's feeds. [default: everything]")
@click.option("--for", "lasts_s", type=options.Duration(), default="90d", help="How long it is valid.")
@options.changes
def add(
    invocation: Invocation, *, name: str, role: roles.AccessRole, tenant: str | None, lasts_s: float
) -> None:
    """Create a token and print it. Only its hash is stored, so it cannot be printed again.

    \b
    Example:
      feedq token add acme-ci --role operator --tenant acme --for 30d
    """
    made = invocation.do(fleet.add_token, name=name, role=role, tenant=tenant, days=lasts_s / DAY_S)
    answer(invocation, made, made.token)


@token.command("list")
def list_(invocation: Invocation) -> None:
    """All tokens, with their roles and expiry.

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
    answer_list(invocation, invocation.do(fleet.list_tokens).items, columns, empty=empty)


@token.command()
@click.argument("names", nargs=-1, required=True)
@options.changes
def remove(invocation: Invocation, *, names: tuple[str, ...]) -> None:
    """Revoke tokens at once.

    \b
    Example:
      feedq token remove acme-ci
    """
    removed = [invocation.do(fleet.remove_token, name=name) for name in dict.fromkeys(names)]
    answer(invocation, removed, "\n".join(f"{one.name} removed" for one in removed))


# -- verbs ---------------------------------------------------------------------------------------------


@options.command("do", short_help="Call any verb of the API by name.")
@click.argument("verb", required=False)
@click.argument("assignments", nargs=-1, metavar="[KEY=VALUE]...")
@options.changes
def do_verb(invocation: Invocation, *, verb: str | None, assignments: Sequence[str]) -> None:
    """Call a verb of the API by name and print its answer as JSON. Without a name, list them all.

    It never asks for confirmation; verbs that change something take dry_run=true. Arguments are those in
    openapi.json, written as for `feedq feed set`.

    \b
    Example:
      feedq do list_feeds select.tenant=acme limit=5
      feedq do act_on_worker name=celery@host action=drain dry_run=true
    """
    known = registry.load()
    if verb is None:
        rows = [
            {
                "name": one.name,
                "role": one.role,
                "address": f"{one.method} {one.path}",
                "summary": one.summary,
            }
            for one in known.values()
        ]
        titles = {"VERB": "name", "ROLE": "role", "ADDRESS": "address", "DOES": "summary"}
        columns = [TableColumn(title, itemgetter(key)) for title, key in titles.items()]
        answer_list(invocation, rows, columns, empty="")
        return
    if verb not in known:
        raise NotFound(f"no verb {verb!r}{values.did_you_mean(verb, known) or '; `feedq do` lists them'}")
    found = invocation.do_named(known[verb], assigned({}, assignments, values.Entry))
    if known[verb].is_stream:
        for item in filter(None, found):
            write_json_line(item)
        return
    if not invocation.json:
        invocation.form = Form.JSON
    answer(invocation, found)
