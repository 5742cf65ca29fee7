"""`feedq do`: any verb by its name, those without a command of their own too."""

from __future__ import annotations

from collections.abc import Sequence

import click

from feedq.cli.invocation import Command, Form, Invocation, changes
from feedq.cli.lazily import lazily
from feedq.cli.options import assigned
from feedq.cli.output import TableColumn, answer, answer_list, write_json_line
from feedq.errors import NotFound

with lazily():
    from feedq.core import values
    from feedq.verbs import registry


@click.command("do", cls=Command, short_help="Any verb of the API by its name; without one, all there are.")
@click.argument("verb", required=False)
@click.argument("assignments", nargs=-1, metavar="[KEY=VALUE]...")
@changes
def do_verb(invocation: Invocation, *, verb: str | None, assignments: Sequence[str]) -> None:
    """Do what a verb does with these arguments, and print its answer as JSON. Nothing is asked before: a verb that
    changes something says with dry_run=true what it would do.

    Arguments are those of the API (openapi.json has them), written as for `feedq feed set`.

    \b
    Example:
      feedq do list_feeds select.tenant=acme limit=5
      feedq do act_on_worker name=celery@host action=drain dry_run=true
    """
    known = registry.load()
    if verb is None:
        columns: list[TableColumn[registry.Verb]] = [
            TableColumn("VERB", lambda one: one.name),
            TableColumn("ROLE", lambda one: one.role),
            TableColumn("ADDRESS", lambda one: f"{one.method} {one.path}"),
            TableColumn("DOES", lambda one: one.summary),
        ]
        documents = [{"name": one.name, "role": one.role, "summary": one.summary} for one in known.values()]
        if invocation.json:
            answer(invocation, documents)
        else:
            answer_list(invocation, list(known.values()), columns, empty="")
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
