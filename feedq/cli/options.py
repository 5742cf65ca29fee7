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
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any

from feedq.connectors.base import load_connector
from feedq.errors import InvalidInput
from feedq.model import FeedSpec, TargetState
from feedq.sinks.base import SinkOptions
from feedq.values import parse_duration, parse_moment

Schema = Mapping[str, Any]
SETTABLE = (
    "source.…, sink.…, labels.…, selector.required.…, selector.preferred.…, connector, tenant, weight, "
    "target_state"
)
LABELS = ("labels", "selector.required", "selector.preferred")
UNSETTABLE = "source.…, sink.…, labels.…, selector.required.… and selector.preferred.…"


def split_assignment(text: str, *, option: str) -> tuple[str, str]:
    """``key=value`` in two. Raises `InvalidInput`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidInput(f"{option} {text!r}: write it as KEY=VALUE")
    return key, value


def moment(text: str, zone: str, *, option: str) -> datetime:
    """As `parse_moment`. Raises `InvalidInput` that names the option."""
    try:
        return parse_moment(text, zone)
    except ValueError as error:
        raise InvalidInput(f"{option}: {error}") from None


def duration(text: str, *, option: str) -> float:
    """As `parse_duration`. Raises `InvalidInput` that names the option."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidInput(f"{option}: {error}") from None


def parse_object(text: str, *, option: str) -> dict[str, Any]:
    """A JSON object. Raises `InvalidInput`, without the text: it may hold a secret."""
    value = _parse(text, option=option)
    if not isinstance(value, dict):
        raise InvalidInput(f'{option}: must be a JSON object, such as \'{{"url": "tcp://…"}}\'')
    return value


def parse_list(text: str, *, option: str) -> list[Any]:
    """A JSON list. Raises as `parse_object`."""
    value = _parse(text, option=option)
    if not isinstance(value, list):
        raise InvalidInput(f"{option}: must be a JSON list, such as '[1, \"a\"]'")
    return value


def _parse(text: str, *, option: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{option}: is no valid JSON: {error}") from None


def merge_arguments(
    arguments: Mapping[str, Any], assignments: Iterable[str], *, option: str
) -> dict[str, Any]:
    """Assignments on top of arguments by name; a value is JSON if it can be read as such, else text."""
    given = (split_assignment(text, option=option) for text in assignments)
    return dict(arguments) | {key: _typed(value, set()) for key, value in given}


def set_options(
    spec: FeedSpec, assignments: Iterable[str], *, option: str = "--set", below: str = ""
) -> FeedSpec:
    """``source.url=…`` or ``weight=2``, put into a feed. Raises `InvalidInput`.

    ``below`` is what paths begin with: to ``-o`` they are options of the source.
    """
    for text in assignments:
        given, value = split_assignment(text, option=option)
        path, named = below + given, f"{option} {given}"
        head, _, rest = path.partition(".")
        place, label = _label_at(path)
        match head, bool(rest):
            case (("source" | "sink"), True):
                changed: Any = _with(getattr(spec, head), rest, value, _schema(head, spec.connector), named)
                spec = replace(spec, **{head: changed})
            case (("labels" | "selector"), True) if place:
                spec = _with_labels(spec, place, _labels_of(spec, place) | {label: value})
            case "connector", False:
                spec = replace(spec, connector=value)
            case "tenant", False:
                spec = replace(spec, tenant=value)
            case "weight", False:
                spec = replace(spec, weight=_number(value))
            case "target_state", False:
                spec = replace(spec, target_state=_target(value))
            case _:
                raise InvalidInput(f"{named}: no such option; known are {SETTABLE}")
    return spec


def unset_options(spec: FeedSpec, paths: Iterable[str]) -> FeedSpec:
    """Take options away, so that they are at their default. Raises `InvalidInput` when one is not set."""
    for path in paths:
        head, _, rest = path.partition(".")
        place, label = _label_at(path)
        if not place and (head not in ("source", "sink") or not rest):
            raise InvalidInput(f"--unset {path}: only {UNSETTABLE} can be unset")
        options: Any = _labels_of(spec, place) if place else copy.deepcopy(dict(getattr(spec, head)))
        *outer, last = [label] if place else rest.split(".")
        inner = options
        for key in outer:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or last not in inner:
            raise InvalidInput(f"--unset {path}: is not set")
        del inner[last]
        spec = _with_labels(spec, place, options) if place else replace(spec, **{head: options})
    return spec


def _label_at(path: str) -> tuple[str, str]:
    """The mapping of labels that a path leads into, and the label, which may have dots; empty if into none."""
    for place in LABELS:
        if path.startswith(f"{place}.") and path != f"{place}.":
            return place, path.removeprefix(f"{place}.")
    return "", ""


def _labels_of(spec: FeedSpec, place: str) -> dict[str, str]:
    return dict(attrgetter(place)(spec))


def _with_labels(spec: FeedSpec, place: str, labels: dict[str, str]) -> FeedSpec:
    if place == "labels":
        return replace(spec, labels=labels)
    return replace(spec, selector=replace(spec.selector, **{place.partition(".")[2]: labels}))


@cache
def _schema(part: str, connector: str) -> Schema:
    model = SinkOptions if part == "sink" else load_connector(connector).Options
    return model.model_json_schema()


def _with(options: Mapping[str, Any], path: str, value: str, schema: Schema, named: str) -> dict[str, Any]:
    """The options with a value put where the path leads; ``named`` is how an error names them."""
    merged: dict[str, Any] = copy.deepcopy(dict(options))
    *outer, last = path.split(".")
    inner, its_schema = merged, schema
    for key in outer:
        its_schema = _mapping(_property(its_schema, key, schema), schema)
        if inner.get(key) is None:  # not there, or there as null
            inner[key] = {}
        inner = inner[key]
        if not isinstance(inner, dict):
            raise InvalidInput(f"{named}: {key!r} is not a mapping")
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
