"""`feedq connectors`: what feeds can be made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from feedq.cli.invocation import Invocation, pass_invocation
from feedq.cli.output import TableColumn, answer, write_table


@click.command(short_help="The installed connectors and their options.")
@click.argument("name", required=False)
@pass_invocation
def connectors(invocation: Invocation, *, name: str | None) -> None:
    """The connectors that are installed, here or at the server, and their options; with --json as JSON schema.

    \b
    Example:
      feedq connectors tcp
    """
    from feedq.verbs.fleet import list_connectors, show_connector

    schemas = (
        invocation.do(list_connectors) if name is None else {name: invocation.do(show_connector, name=name)}
    )
    answer(invocation, schemas, lambda: _write(schemas))


def _write(schemas: Mapping[str, Mapping[str, Any]]) -> None:
    for position, (kind, schema) in enumerate(schemas.items()):
        if position:
            click.echo()
        click.echo(f"{kind}: {_first_sentence(schema.get('description', ''))}")
        write_table(list(schema.get("properties", {}).items()), _columns(schema))


def _columns(schema: Mapping[str, Any]) -> list[TableColumn[tuple[str, Any]]]:
    required = set(schema.get("required", ()))
    return [
        TableColumn("  OPTION", lambda row: f"  {row[0]}"),
        TableColumn("TYPE", lambda row: _type(row[1], schema)),
        TableColumn("DEFAULT", lambda row: "required" if row[0] in required else _default(row[1])),
        TableColumn("MEANS", lambda row: _first_sentence(row[1].get("description", ""))),
    ]


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _type(about: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Names a type in a word or two."""
    if "$ref" in about:
        return _type(root["$defs"][about["$ref"].rpartition("/")[2]], root)
    if "anyOf" in about:
        return " or ".join(kind for one in about["anyOf"] if (kind := _type(one, root)) != "null")
    if "enum" in about:
        return "|".join(map(str, about["enum"]))
    if about.get("type") == "object":
        inner = about.get("additionalProperties")
        return f"mapping to {_type(inner, root)}" if isinstance(inner, Mapping) else "mapping"
    if about.get("type") == "array":
        return f"list of {_type(about.get('items', {}), root)}"
    return str(about.get("type", "any"))


def _default(about: Mapping[str, Any]) -> str:
    from feedq.verbs.wording import as_json

    default = about.get("default")
    return "-" if default in (None, "", {}, []) else as_json(default).strip('"')
