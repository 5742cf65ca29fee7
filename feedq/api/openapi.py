"""The OpenAPI document, made from the registry of verbs."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

import feedq
from feedq.api.endpoint import PROBLEM_TYPE
from feedq.core.selection import Selection
from feedq.core.values import Entry
from feedq.verbs.json_schema import DescribedSchema
from feedq.verbs.registry import JSON_TYPE, PREFIX, STREAM_TYPE, Problem, Progress, Verb, load

COMPONENTS: Final = "#/components/schemas/{name}"


def openapi() -> dict[str, Any]:
    """Describe every verb: its address, arguments, answer, and the role that it needs."""
    verbs = list(load().values())
    kinds = [
        *(verb.arguments for verb in verbs),
        *(dict[str, Any] if verb.is_stream else verb.answer for verb in verbs),
        Problem,
        Progress,
        Selection,
    ]
    below: dict[str, Any] = {}
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template=COMPONENTS, schema_hook=partial(_schema, below)
    )
    answers = dict(zip([verb.name for verb in verbs], schemas[len(verbs) :], strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for verb in verbs:
        described = _operation(verb, answers[verb.name], components)
        paths.setdefault(PREFIX + verb.path, {})[verb.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "feedq",
            "version": feedq.__version__,
            "summary": "Long-running feeds on a fixed set of workers.",
        },
        "paths": paths,
        "components": {"schemas": components | below},
    }


def _schema(below: dict[str, Any], kind: type) -> dict[str, Any]:
    """The schema of a declaration, which is pydantic's: msgspec knows everything else. Its parts go ``below``."""
    if not issubclass(kind, Entry):
        raise NotImplementedError(kind)
    place = COMPONENTS.format(name="{model}")
    found = kind.model_json_schema(ref_template=place, schema_generator=DescribedSchema)
    below.update(found.pop("$defs", {}))
    below[kind.__name__] = found
    return {"$ref": COMPONENTS.format(name=kind.__name__)}


def _operation(verb: Verb, answer: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    of = components[verb.arguments.__name__]
    described: dict[str, Any] = {
        "operationId": verb.name,
        "summary": verb.summary,
        "description": verb.description,
        "x-feedq-role": f"{verb.role} over everything" if verb.of_fleet else str(verb.role),
        "parameters": [_parameter(name, of["properties"][name], "path", True) for name in verb.in_path],
        "responses": _responses(answer),
    }
    others = {name: schema for name, schema in of["properties"].items() if name not in verb.in_path}
    required = [name for name in of.get("required", ()) if name in others]
    if verb.changes and others:
        body = {"type": "object", "properties": others, "required": required, "additionalProperties": False}
        described["requestBody"] = {"required": bool(required), "content": {JSON_TYPE: {"schema": body}}}
    elif not verb.changes:
        if others.pop("select", None):
            others |= components["Selection"]["properties"]
        described["parameters"] += [
            _parameter(name, schema, "query", name in required) for name, schema in others.items()
        ]
    return described


def _parameter(name: str, schema: dict[str, Any], place: str, is_required: bool) -> dict[str, Any]:
    return {"name": name, "in": place, "required": is_required, "schema": schema}


def _responses(answer: dict[str, Any]) -> dict[str, Any]:
    problem = {"content": {PROBLEM_TYPE: {"schema": {"$ref": COMPONENTS.format(name="Problem")}}}}
    stream = {"schema": {"type": "string"}}
    return {
        "200": {
            "description": "The answer.",
            "content": {JSON_TYPE: {"schema": answer}, STREAM_TYPE: stream},
        },
        "4XX": {"description": "The request is wrong, or cannot be carried out as things stand.", **problem},
        "5XX": {"description": "A server that feedq needs does not answer.", **problem},
    }
