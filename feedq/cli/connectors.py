"""`feedq connectors`: what feeds can be made of."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import click

from feedq.cli.invocation import Invocation, json_option, pass_invocation
from feedq.cli.output import warn, write_json, write_table
from feedq.cli.views import compact
from feedq.connectors.base import ENTRY_POINT_GROUP, load_connector
from feedq.errors import InvalidInput


@click.command(short_help="The installed connectors and their options.")
@click.argument("name", required=False)
@json_option
@pass_invocation
def connectors(invocation: Invocation, *, name: str | None) -> None:
    """The installed connectors and their options; with --json as JSON schema.

    \b
    Example:
      feedq connectors tcp
    """
    names = [name] if name else sorted(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))
    schemas: dict[str, Mapping[str, Any]] = {}
    for kind in names:
        try:
            schemas[kind] = load_connector(kind).Options.model_json_schema()
        except InvalidInput as error:
            if name:
                raise
            warn(str(error))
    if invocation.json:
        write_json(schemas)
        return
    for position, (kind, schema) in enumerate(schemas.items()):
        if position:
            click.echo()
        _write(kind, schema)


def _write(kind: str, schema: Mapping[str, Any]) -> None:
    click.echo(f"{kind}: {_first_sentence(schema.get('description', ''))}")
    required = set(schema.get("required", ()))
    rows = [
        (
            f"  {option}",
            _type(about, schema),
            "required" if option in required else _default(about),
            _first_sentence(about.get("description", "")),
        )
        for option, about in schema.get("properties", {}).items()
    ]
    write_table(("  OPTION", "TYPE", "DEFAULT", "MEANS"), rows)


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _type(about: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """A type in a word or two."""
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
    default = about.get("default")
    return "-" if default in (None, "", {}, []) else compact(default).strip('"')
