"""``key=value`` on the command line, as options of a feed.

What the text means follows from the option's own type: a string is taken as it stands, anything else is read
as JSON (``idle_timeout_s=30``, ``verify=false``), a list may also be written with commas. What may be a string or
a list is a string, however much it looks like a list: JSON is what many sources want to be sent. Dots lead into
mappings: ``columns.seq=/seq``, ``secrets.token=${env:TOKEN}``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from feedq.connectors.base import load_connector
from feedq.errors import InvalidInput
from feedq.model import FeedSpec, Selector, TargetState
from feedq.sinks.base import SinkOptions

Schema = Mapping[str, Any]
SETTABLE = (
    "source.…, sink.…, labels.…, selector.required.…, selector.preferred.…, connector, tenant, weight, "
    "target_state"
)
UNSETTABLE = "source.…, sink.…, labels.…, selector.required.… and selector.preferred.…"


def split_assignment(text: str, *, option: str) -> tuple[str, str]:
    """``key=value`` in two. Raises `InvalidInput`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidInput(f"{option} {text!r}: write it as KEY=VALUE")
    return key, value


def parse_object(text: str, *, option: str) -> dict[str, Any]:
    """A JSON object. Raises `InvalidInput`, without the text: it may hold a secret."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{option}: is no valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f'{option}: must be a JSON object, such as \'{{"url": "tcp://…"}}\'')
    return value


def parse_list(text: str, *, option: str) -> list[Any]:
    """A JSON list. Raises `InvalidInput`, without the text: it may hold a secret."""
    try:
        value = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{option}: is no valid JSON: {error}") from None
    if not isinstance(value, list):
        raise InvalidInput(f"{option}: must be a JSON list, such as '[1, \"a\"]'")
    return value


def merge_arguments(
    arguments: Mapping[str, Any], assignments: Iterable[str], *, option: str
) -> dict[str, Any]:
    """Assignments on top of arguments by name; a value is JSON if it can be read as such, else text."""
    given = (split_assignment(text, option=option) for text in assignments)
    return dict(arguments) | {key: _typed(value, set()) for key, value in given}


def merge_source(source: Mapping[str, Any], connector: str, assignments: Iterable[str]) -> dict[str, Any]:
    """``-o`` assignments on top of a source."""
    return _merge(source, assignments, load_connector(connector).Options.model_json_schema(), option="-o")


def merge_sink(sink: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """``--sink`` assignments on top of a sink; a text in braces replaces it as a whole."""
    for text in assignments:
        if text.lstrip().startswith("{"):
            sink = parse_object(text, option="--sink")
        else:
            sink = _merge(sink, [text], SinkOptions.model_json_schema(), option="--sink")
    return dict(sink)


def merge_labels(
    labels: Mapping[str, str], assignments: Iterable[str], *, option: str = "--label"
) -> dict[str, str]:
    return dict(labels) | dict(split_assignment(text, option=option) for text in assignments)


def merge_selector(selector: Selector, *, require: Iterable[str], prefer: Iterable[str]) -> Selector:
    """``--require`` and ``--prefer`` assignments on top of a selector."""
    return Selector(
        required=merge_labels(selector.required, require, option="--require"),
        preferred=merge_labels(selector.preferred, prefer, option="--prefer"),
    )


def set_options(spec: FeedSpec, assignments: Iterable[str]) -> FeedSpec:
    """``--set`` assignments such as ``source.url=…`` or ``weight=2``. Raises `InvalidInput`."""
    for text in assignments:
        path, value = split_assignment(text, option="--set")
        head, _, rest = path.partition(".")
        match head, bool(rest):
            case "source", True:
                spec = replace(spec, source=merge_source(spec.source, spec.connector, [f"{rest}={value}"]))
            case "sink", True:
                spec = replace(spec, sink=merge_sink(spec.sink, [f"{rest}={value}"]))
            case "labels", True:
                spec = replace(spec, labels={**spec.labels, rest: value})
            case "selector", True:
                spec = replace(spec, selector=_with_label(spec.selector, path, value))
            case "connector", False:
                spec = replace(spec, connector=value)
            case "tenant", False:
                spec = replace(spec, tenant=value)
            case "weight", False:
                spec = replace(spec, weight=_number(value))
            case "target_state", False:
                spec = replace(spec, target_state=_target(value))
            case _:
                raise InvalidInput(f"--set {path}: no such option; known are {SETTABLE}")
    return spec


def unset_options(spec: FeedSpec, paths: Iterable[str]) -> FeedSpec:
    """Take options away, so that they are at their default. Raises `InvalidInput` when one is not set."""
    for path in paths:
        head, _, rest = path.partition(".")
        if head == "selector":
            spec = replace(spec, selector=_without_label(spec.selector, path))
            continue
        if head not in ("source", "sink", "labels") or not rest:
            raise InvalidInput(f"--unset {path}: only {UNSETTABLE} can be unset")
        options = copy.deepcopy(dict(getattr(spec, head)))
        keys = [rest] if head == "labels" else rest.split(".")
        inner: Any = options
        for key in keys[:-1]:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or keys[-1] not in inner:
            raise InvalidInput(f"--unset {path}: is not set")
        del inner[keys[-1]]
        changed: dict[str, Any] = {head: options}
        spec = replace(spec, **changed)
    return spec


def _with_label(selector: Selector, path: str, value: str) -> Selector:
    match path.split(".", 2):
        case [_, "required", key] if key:
            return replace(selector, required={**selector.required, key: value})
        case [_, "preferred", key] if key:
            return replace(selector, preferred={**selector.preferred, key: value})
    raise InvalidInput(f"--set {path}: no such option; known are {SETTABLE}")


def _without_label(selector: Selector, path: str) -> Selector:
    match path.split(".", 2):
        case [_, "required", key] if key in selector.required:
            return replace(selector, required={k: v for k, v in selector.required.items() if k != key})
        case [_, "preferred", key] if key in selector.preferred:
            return replace(selector, preferred={k: v for k, v in selector.preferred.items() if k != key})
        case [_, "required" | "preferred", _]:
            raise InvalidInput(f"--unset {path}: is not set")
    raise InvalidInput(f"--unset {path}: only {UNSETTABLE} can be unset")


def _merge(
    options: Mapping[str, Any], texts: Iterable[str], schema: Schema, *, option: str
) -> dict[str, Any]:
    merged: dict[str, Any] = copy.deepcopy(dict(options))
    for text in texts:
        path, value = split_assignment(text, option=option)
        *outer, last = path.split(".")
        inner, its_schema = merged, schema
        for key in outer:
            its_schema = _mapping(_property(its_schema, key, schema), schema)
            if inner.get(key) is None:  # not there, or there as null
                inner[key] = {}
            inner = inner[key]
            if not isinstance(inner, dict):
                raise InvalidInput(f"{option} {path}: {key!r} is not a mapping")
        inner[last] = _typed(value, _kinds(_property(its_schema, last, schema), schema))
    return merged


def _property(schema: Schema, key: str, root: Schema) -> Schema:
    """The schema of one property; empty when it is not known, which validation will say better."""
    found = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
    return _resolved(found, root) if isinstance(found, Mapping) else {}


def _mapping(schema: Schema, root: Schema) -> Schema:
    """The alternative that a path leads into: of text or a mapping, the mapping."""
    alternatives = [_resolved(one, root) for one in schema.get("anyOf", [schema])]
    return next((one for one in alternatives if "object" in _types(one)), schema)


def _resolved(schema: Schema, root: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    found: Schema = root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
    return found


def _kinds(schema: Schema, root: Schema) -> set[str]:
    """The JSON types that a value may be of; none when it may be anything, or nothing is known of it."""
    return {kind for one in schema.get("anyOf", [schema]) for kind in _types(_resolved(one, root))}


def _types(schema: Schema) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def _typed(text: str, kinds: set[str]) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        # No JSON: text, which validation may still refuse, naming the option and its type.
        value = text
    if "string" in kinds:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        wanted = ("object" in kinds and isinstance(value, dict)) or (
            is_number and ("number" in kinds or ("integer" in kinds and isinstance(value, int)))
        )
        return value if wanted else text
    if "array" in kinds and not isinstance(value, list) and not (value is None and "null" in kinds):
        return [value] if isinstance(value, dict) else text.split(",")
    return value


def _no_json(constant: str) -> Any:
    # Python reads NaN and Infinity, which no database takes for JSON.
    raise ValueError(constant)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"weight: {text!r} is no number") from None


def _target(text: str) -> TargetState:
    try:
        return TargetState(text)
    except ValueError:
        known = ", ".join(state.value for state in TargetState)
        raise InvalidInput(f"target_state: {text!r} must be one of {known}") from None
