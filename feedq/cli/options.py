"""``key=value`` on the command line, as options of a feed.

What the text means follows from the option's own type: a string is taken as it stands, anything else is read
as JSON (``idle_timeout_s=30``, ``verify=false``), a list may also be written with commas. What may be a string or
a list is a string, however much it looks like a list: JSON is what many sources want to be sent. Dots lead into
mappings: ``columns.seq=/seq``, ``secrets.token=${env:TOKEN}``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from feedq.connectors.base import load_connector
from feedq.core.values import parse_duration, parse_moment
from feedq.errors import InvalidInput
from feedq.sinks.base import SinkOptions
from feedq.verbs.manifest.feed_entry import FeedEntry

Schema = Mapping[str, Any]
SETTABLE = (
    "source.…, sink.…, labels.…, selector.required.…, selector.preferred.…, connector, tenant, weight, "
    "target_state"
)
PLAIN = ("connector", "tenant", "weight", "target_state")
LABELS = ("labels", "selector.required", "selector.preferred")
UNSETTABLE = "source.…, sink.…, labels.…, selector.required.… and selector.preferred.…"


def split_assignment(text: str, *, option: str) -> tuple[str, str]:
    """Splits ``key=value`` in two. Raises `InvalidInput`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidInput(f"{option} {text!r}: write it as KEY=VALUE")
    return key, value


def moment(text: str, zone: str, *, option: str) -> datetime:
    """Reads a time as `parse_moment` does. Raises `InvalidInput` that names the option."""
    try:
        return parse_moment(text, zone)
    except ValueError as error:
        raise InvalidInput(f"{option}: {error}") from None


def duration(text: str, *, option: str) -> float:
    """Reads a duration as `parse_duration` does. Raises `InvalidInput` that names the option."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidInput(f"{option}: {error}") from None


def parse_object(text: str, *, option: str) -> dict[str, Any]:
    """Reads a JSON object. Raises `InvalidInput`, without the text: it may hold a secret."""
    value = _parse(text, option=option)
    if not isinstance(value, dict):
        raise InvalidInput(f'{option}: must be a JSON object, such as \'{{"url": "tcp://…"}}\'')
    return value


def parse_list(text: str, *, option: str) -> list[Any]:
    """Reads a JSON list. Raises as `parse_object`."""
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
    """Puts assignments on top of arguments by name; a value is JSON if it can be read as such, else text."""
    given = (split_assignment(text, option=option) for text in assignments)
    return dict(arguments) | {key: _typed(value, set()) for key, value in given}


def set_options(
    keys: Mapping[str, Any], assignments: Iterable[str], *, option: str = "--set", below: str = ""
) -> dict[str, Any]:
    """Puts ``source.url=…`` or ``weight=2`` into a feed as it stands in a manifest. Raises `InvalidInput`.

    ``below`` is what paths begin with: to ``-o`` they are options of the source.
    """
    changed = copy.deepcopy(dict(keys))
    for text in assignments:
        given, value = split_assignment(text, option=option)
        steps, named = _steps(below + given), f"{option} {given}"
        if not steps:
            raise InvalidInput(f"{named}: no such option; known are {SETTABLE}")
        _put(changed, steps, value, named)
    return changed


def unset_options(keys: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Takes options away, so that they are at their default. Raises `InvalidInput` when one is not set."""
    changed = copy.deepcopy(dict(keys))
    for path in paths:
        *outer, last = _steps(path) or [path]
        if not outer:
            raise InvalidInput(f"--unset {path}: only {UNSETTABLE} can be unset")
        inner: Any = changed
        for key in outer:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or last not in inner:
            raise InvalidInput(f"--unset {path}: is not set")
        del inner[last]
    return changed


def _steps(path: str) -> list[str]:
    """Lists the keys that a path leads through; none if it leads nowhere. A label may have dots."""
    for place in LABELS:
        if path.startswith(f"{place}.") and path != f"{place}.":
            return [*place.split("."), path.removeprefix(f"{place}.")]
    steps = path.split(".")
    is_known = path in PLAIN or (steps[0] in ("source", "sink") and len(steps) > 1)
    return steps if is_known else []


@cache
def _schema(part: str, connector: str) -> Schema:
    match part:
        case "source":
            return load_connector(connector).Options.model_json_schema()
        case "sink":
            return SinkOptions.model_json_schema()
    return FeedEntry.model_json_schema()


def _put(keys: dict[str, Any], steps: Sequence[str], value: str, named: str) -> None:
    """Puts a value where the steps lead; ``named`` is how an error names them."""
    root = _schema(steps[0], keys["connector"])
    if steps[0] in ("source", "sink"):
        keys, steps = keys.setdefault(steps[0], {}), steps[1:]
    *outer, last = steps
    inner, its_schema = keys, root
    for key in outer:
        its_schema = _mapping(_property(its_schema, key, root), root)
        if inner.get(key) is None:  # not there, or there as null
            inner[key] = {}
        inner = inner[key]
        if not isinstance(inner, dict):
            raise InvalidInput(f"{named}: {key!r} is not a mapping")
    inner[last] = _typed(value, _kinds(_property(its_schema, last, root), root))


def _property(schema: Schema, key: str, root: Schema) -> Schema:
    """Finds the schema of one property; empty when it is not known, which validation will say better."""
    found = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
    return _resolved(found, root) if isinstance(found, Mapping) else {}


def _mapping(schema: Schema, root: Schema) -> Schema:
    """Picks the alternative that a path leads into: of text or a mapping, the mapping."""
    alternatives = [_resolved(one, root) for one in schema.get("anyOf", [schema])]
    return next((one for one in alternatives if "object" in _types(one)), schema)


def _resolved(schema: Schema, root: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    found: Schema = root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
    return found


def _kinds(schema: Schema, root: Schema) -> set[str]:
    """Lists the JSON types that a value may be of; none when it may be anything, or nothing is known of it."""
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
