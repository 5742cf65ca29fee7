"""JSON Schema of manifests, for editors: what the models say of their keys, and each connector of its options."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from inspect import cleandoc, getsource
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from feedq.connectors.base import connector_kinds, load_connector
from feedq.core.values import entries_below
from feedq.errors import InvalidInput
from feedq.sinks.base import SinkOptions
from feedq.verbs.manifests import ENTRIES
from feedq.verbs.registry import At, NameArgument, verb

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


class DescribedSchema(GenerateJsonSchema):
    """Describes each key with the docstring of its field, and leaves out titles that repeat its name."""

    # pydantic's `use_attribute_docstrings` reads the source of each class while that is imported: 10 ms a class.

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: Any) -> Schema:
        found = super().model_schema(schema)
        keys = found.get("properties", {})
        for key, said in field_docstrings(schema["cls"]).items():
            if key in keys:
                keys[key].setdefault("description", said)
        return found


@cache
def field_docstrings(model: type[BaseModel]) -> Mapping[str, str]:
    """The docstrings of a model's fields, inherited ones too."""
    found = {}
    for kind in reversed(model.__mro__):
        if kind.__module__.startswith("pydantic") or not issubclass(kind, BaseModel):
            continue
        try:
            (definition,) = ast.parse(dedent(getsource(kind))).body
        except OSError:  # a connector of others that is installed without its source
            continue
        assert isinstance(definition, ast.ClassDef)
        for field, after in pairwise(definition.body):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(said))):
                    found[key] = cleandoc(said)
    return found


def manifest_schema() -> Schema:
    """What a manifest may say, with the options of every connector that is installed here."""
    defs: Schema = {}
    lists = {
        key: {"type": "array", "items": _schema_of(entry, key, defs), "description": entry.__doc__}
        for key, entry in ENTRIES.items()
    }
    feed = defs["feeds"]
    feed["properties"]["sink"] |= _schema_of(SinkOptions, "sink", defs)
    connectors = installed_connectors()
    feed["properties"]["connector"]["enum"] = list(connectors)
    feed["allOf"] = [
        {
            "if": {"properties": {"connector": {"const": kind}}, "required": ["connector"]},
            "then": {"properties": {"source": _schema_of(options, kind, defs)}},
        }
        for kind, options in connectors.items()
    ]
    return {
        "$schema": DIALECT,
        "title": "Manifest of feedq",
        "type": "object",
        "properties": lists,
        "patternProperties": {"^x-": {"description": "For your own use, such as anchors."}},
        "additionalProperties": False,
        "$defs": defs,
    }


def _schema_of(model: type[BaseModel], name: str, defs: Schema) -> Schema:
    """A reference to the model, which gets into ``defs`` under this name; what it consists of below it."""
    place = f"#/$defs/{name}.{{model}}"
    schema = model.model_json_schema(ref_template=place, schema_generator=DescribedSchema)
    inner = schema.pop("$defs", {})
    for _, entry in entries_below(model):
        if entry.shorthand:
            whole = inner[entry.__name__]
            inner[entry.__name__] = {"anyOf": [whole, whole["properties"][entry.shorthand]]}
    defs |= {f"{name}.{key}": value for key, value in inner.items()} | {name: schema}
    return {"$ref": f"#/$defs/{name}"}


@verb("GET /schema")
def show_schema(at: At) -> dict[str, Any]:
    """Show the JSON Schema of manifests."""
    return manifest_schema()


# -- connectors ----------------------------------------------------------------------------------------


@verb("GET /connectors")
def list_connectors(at: At) -> dict[str, dict[str, Any]]:
    """Show the JSON Schemas of the options of all connectors, by kind."""
    return {kind: _options_schema(options) for kind, options in installed_connectors().items()}


@verb("GET /connectors/{name}")
def show_connector(at: At, *, name: NameArgument) -> dict[str, Any]:
    """Show the JSON Schema of a connector's options."""
    return _options_schema(load_connector(name).Options)


def installed_connectors() -> dict[str, type[BaseModel]]:
    """The options of the connectors that can be imported: one that cannot must not hide the others."""
    found: dict[str, type[BaseModel]] = {}
    for kind in connector_kinds():
        with suppress(InvalidInput):
            found[kind] = load_connector(kind).Options
    return found


def _options_schema(options: type[BaseModel]) -> Schema:
    return options.model_json_schema(schema_generator=DescribedSchema)
