"""Writes what the code already knows: settings, commands, options, metrics, and the states of a lease.

``make docs`` runs it; a test fails while a page differs from what it would write. Each stands between two
comments, ``<!-- name: begin -->`` and ``<!-- name: end -->``; everything around them is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import cache, partial
from importlib.metadata import entry_points
from inspect import cleandoc
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from feedq.celery import fleet_metrics
from feedq.celery.fleet_metrics import FleetReading, fleet_families
from feedq.cli import main as main_command
from feedq.cli.choosing import chooses_feeds
from feedq.cli.options import Duration
from feedq.connectors.base import ENTRY_POINT_GROUP, ConnectorOptions, load_connector
from feedq.connectors.messages import MessageOptions
from feedq.connectors.reading import FramingOptions
from feedq.connectors.wire.remote import RemoteOptions, RequestOptions
from feedq.control.store.fleet_state import FleetState, JobState
from feedq.core import worker as core
from feedq.core.values import Entry, Number, exact_duration, parse_duration
from feedq.settings import Settings
from feedq.sinks.base import SinkOptions
from feedq.telemetry import metrics as telemetry_metrics
from feedq.verbs.catalogs.base import ENTRY_POINT_GROUP as CATALOG_GROUP
from feedq.verbs.catalogs.base import FeedCatalog, load_catalog
from feedq.verbs.json_schema import field_docstrings, manifest_schema
from feedq.verbs.manifests import ENTRIES

HERE = Path(__file__).parent

SECTIONS = {
    "database_url": "Connections",
    "heartbeat_s": "Ownership and the control plane",
    "placement": "Placement, moves and ramp-up",
    "job_slots": "The worker",
    "flush_interval_s": "Writing to the sink",
    "tenant_limits": "What feeds may do",
    "imports": "Schedules and history",
    "log_level": "Log",
}
"""The setting that each section of the table begins with."""


def settings_tables() -> str:
    lines: list[str] = []
    said = field_docstrings(Settings)
    for name, field in Settings.model_fields.items():
        if name in SECTIONS:
            lines += ["", f"## {SECTIONS[name]}", ""]
            lines += ["| variable | values | default | meaning |", "|---|---|---|---|"]
        variable = f"FEEDQ_{name.upper()}" + {"sinks": "__<NAME>", "catalogs": "__<NAME>__<OPTION>"}.get(
            name, ""
        )
        lines.append(f"| `{variable}` | {_values(name, field)} | {_default(field)} | {_cell(said[name])} |")
    return "\n".join(lines[1:])


METRICS_HEAD = ["| metric | type | meaning |", "|---|---|---|"]


def metrics_table() -> str:
    """Metrics of processes, which stand where they are declared."""
    lines = list(METRICS_HEAD)
    for metric in vars(telemetry_metrics).values():
        families: Iterable[Metric]
        if isinstance(metric, MetricWrapperBase):
            labels, families = metric._labelnames, metric.describe()
        elif isinstance(metric, telemetry_metrics.GroupHistogram):
            labels, families = (), metric.collect()
        else:
            continue
        lines += [_metric_row(family, labels) for family in families]
    return "\n".join(lines)


def fleet_metrics_table() -> str:
    """Metrics of the fleet, which are made anew each time: here of an empty one."""
    now = datetime.now(UTC)
    empty = FleetReading(
        FleetState(now, now, 0.0, None), JobState(0, 0, (), None, 0, 0, 0, None, 0, 0), [], []
    )
    families = [fleet_metrics.leading(True), *fleet_families(empty)]
    return "\n".join([*METRICS_HEAD, *(_metric_row(f, getattr(f, "_labelnames", ())) for f in families)])


def _metric_row(family: Metric, labels: Sequence[str]) -> str:
    name = family.name + ("_total" if family.type == "counter" else "")
    by = f" by {', '.join(f'`{label}`' for label in labels)}" if labels else ""
    return f"| `{name}` | {family.type}{by} | {family.documentation} |"


def worker_states() -> str:
    """The diagrams of a worker session and of its feeds."""
    parts = []
    tables: tuple[tuple[str, Mapping[Any, Any]], ...] = (
        ("joining", core.SESSION_TRANSITIONS),
        ("claiming", core.FEED_TRANSITIONS),
    )
    for first, transitions in tables:
        arrows: dict[tuple[str, str], list[str]] = {}
        for (before, event), after in transitions.items():
            arrows.setdefault((before, after), []).append(event)
        diagram = [
            f"    {before} --> {after}: {', '.join(events)}" for (before, after), events in arrows.items()
        ]
        parts += ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *diagram, "```", ""]
    return "\n".join(parts).rstrip()


def option_table(model: type[BaseModel], *, without: tuple[type[BaseModel], ...] = ()) -> str:
    """The options of a model, but those that it has from ``without``."""
    lines = ["| option | values | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *_option_rows(model, without)])


def _option_rows(
    model: type[BaseModel], without: tuple[type[BaseModel], ...] = (), path: str = ""
) -> Iterator[str]:
    """A row for each option, and below it those of each model in it."""
    said = field_docstrings(model)
    for name, field in model.model_fields.items():
        if any(_says_the_same(base, model, name) for base in without):
            continue
        values = " or ".join(dict.fromkeys(_kinds(field.annotation, _bounds(field))))
        yield f"| `{path}{name}` | {values} | {_option_default(field)} | {_cell(said[name])} |"
        for inner in _models(field.annotation):
            below = ".*" if get_origin(field.annotation) is dict else ""
            yield from _option_rows(inner, path=f"{path}{name}{below}.")


def kinds() -> list[str]:
    """The connectors that feedq comes with."""
    entries = entry_points(group=ENTRY_POINT_GROUP)
    return sorted(e.name for e in entries if e.value.startswith("feedq.connectors."))


SHARED_OPTIONS: dict[str, type[ConnectorOptions]] = {
    "every connector": ConnectorOptions,
    "connections": RemoteOptions,
    "framing": FramingOptions,
    "requests": RequestOptions,
    "messages": MessageOptions,
}
"""Options that several connectors have, by what the heading of their section says."""


def connector_tables() -> dict[str, Callable[[], str]]:
    """By the name of their markers."""
    tables: dict[str, Callable[[], str]] = {
        f"options of {title}": partial(option_table, model, without=_bases(model))
        for title, model in SHARED_OPTIONS.items()
    }
    tables |= {f"options of {kind}": partial(connector_table, kind) for kind in kinds()}
    return tables


def catalog_tables() -> dict[str, Callable[[], str]]:
    """By the name of their markers."""
    tables: dict[str, Callable[[], str]] = {"options of every catalog": partial(option_table, FeedCatalog)}
    for entry in entry_points(group=CATALOG_GROUP):
        if entry.value.startswith("feedq.verbs.catalogs."):
            options = load_catalog(entry.name)
            tables[f"options of {entry.name}"] = partial(option_table, options, without=(FeedCatalog,))
    return tables


def _bases(model: type[ConnectorOptions]) -> tuple[type[ConnectorOptions], ...]:
    return tuple(base for base in SHARED_OPTIONS.values() if base is not model and issubclass(model, base))


def connector_table(kind: str) -> str:
    """Where the options are that a connector shares with others, and its own."""
    options = load_connector(kind).Options
    shared = [title for title, model in SHARED_OPTIONS.items() if issubclass(options, model)]
    links = [f"[{title}](#{title.replace(' ', '-')})" for title in shared]
    table = option_table(options, without=tuple(SHARED_OPTIONS[title] for title in shared))
    return f"Shared options: {', '.join(links)}.\n\n{table}"


def entry_tables() -> dict[str, Callable[[], str]]:
    """What each kind of entry of a manifest may say, by the name of its markers."""
    return {f"keys of {key}": partial(entry_table, key, manifest_schema()["$defs"]) for key in ENTRIES}


def entry_table(key: str, defs: dict[str, Any]) -> str:
    """The keys of a feed, a schedule or a queue, and below them those of each mapping in it."""
    entry: type[Entry] = ENTRIES[key]
    lines = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for name, field, schema in _entry_fields(entry, defs[key]):
        inner = _models(field.annotation)
        below = list(_entry_fields(inner[0], defs[f"{key}.{inner[0].__name__}"])) if inner else []
        words = "mapping" if below else _schema_words(schema, defs)
        meaning = _cell(field_docstrings(entry)[name])
        lines.append(f"| `{name}` | {words} | {_entry_default(field)} | {meaning} |")
        for part, inside, its in below:
            meaning = _cell(field_docstrings(inner[0])[part])
            cells = _schema_words(its, defs), _entry_default(inside), meaning
            lines.append(f"| `{name}.{part}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _entry_fields(entry: type[BaseModel], schema: dict[str, Any]) -> Iterator[tuple[str, FieldInfo, Any]]:
    properties = next(one for one in (schema, *schema.get("anyOf", ())) if "properties" in one)["properties"]
    for name, field in entry.model_fields.items():
        yield name, field, properties[name]


def _schema_words(schema: dict[str, Any], defs: dict[str, Any]) -> str:
    """What JSON Schema says of a value, in words."""
    if not schema.keys() - {"default"}:
        return "any value"
    match schema:
        case {"anyOf": several}:
            found = [_schema_words(one, defs) for one in several if one != {"type": "null"}]
            if "duration" in found:  # the number before it is one of seconds
                least = f" from {several[0]['minimum']:g} s" if several[0]["minimum"] else ""
                found[:2] = [f"duration{least}"]
            return " or ".join(dict.fromkeys(found))
        case {"$ref": place}:
            return _schema_words(defs[place.removeprefix("#/$defs/")], defs)
        case {"enum": values}:
            # Connectors are more than a cell can hold; another page has them.
            return ", ".join(f"`{value}`" for value in values) if len(values) < 9 else "text"
        case {"const": value}:
            return f"`{value}`"
        case {"type": "string", "pattern": pattern} if r"\d" in pattern:
            return "duration"
        case {"type": "array", "items": items}:
            return f"list of {_schema_words(items, defs)}" if items else "list"
        case {"type": "integer" | "number" as kind}:
            is_open = "exclusiveMinimum" in schema
            low = schema["exclusiveMinimum" if is_open else "minimum"]
            return f"{kind}, {_range(low, schema.get('maximum'), is_open=is_open)}"
        case {"type": "boolean"}:
            return "`true`, `false`"
        case {"type": "object"}:
            return "mapping"
    return "text"


def _entry_default(field: FieldInfo) -> str:
    number = next((one for one in field.metadata if isinstance(one, Number)), None)
    if number is None or field.is_required() or (field.default is None and not number.or_none):
        return _option_default(field)
    written = number.written(field.get_default())
    return f"`{_number(written) if isinstance(written, float) else written}`"


def command_sections() -> str:
    """Each command as `--help` explains it, without the options that the page describes once."""
    lines: list[str] = []
    for path, command in commands(main_command, "feedq"):
        lines += [f"## `{path}`", ""]
        about, _, example = cleandoc(command.help or "").partition("\b\nExample:\n")
        lines += [_with_code(about.strip()), ""]
        context = click.Context(command)
        arguments = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
        options = [one for one in command.params if isinstance(one, click.Option)]
        names = {str(one.name) for one in options}
        once = [f"`{one.opts[-1]}`" for one in options if one.name in ("dry_run", "yes", "wait")]
        takes = [f"`{' '.join(arguments)}`"] if arguments else []
        if names >= _feed_options():
            takes = ["[feeds](#choosing-feeds)"]
        if takes or once:
            lines += [f"Takes {', '.join([*takes, *once])}.", ""]
        own = [one for one in options if not _is_described_once(one)]
        if names >= _feed_options():
            own = [one for one in own if one.name not in _feed_options()]
        lines += [*map(_option_line, own), ""] if own else []
        if re.search("[-=>]", example):  # others say no more than the heading
            lines += ["```sh", *(line.strip() for line in example.strip().splitlines()[:2]), "```", ""]
    return "\n".join(lines).rstrip()


def _is_described_once(option: click.Option) -> bool:
    """Whether the head of the page describes the option for all commands that have it."""
    return option.name in ("reason", "yes", "wait", "dry_run") or (option.name, option.help) == (
        "timeout_s",
        "With --wait: give up after this long.",
    )


def choosing_options() -> str:
    """The options by which feeds are chosen."""
    command = dict(commands(main_command, "feedq"))["feedq feed list"]
    chosen = [one for one in command.params if isinstance(one, click.Option) and one.name in _feed_options()]
    return "\n".join(map(_option_line, chosen))


@cache
def _feed_options() -> frozenset[str]:
    """The names of the options by which feeds are chosen."""
    choosing = click.command()(chooses_feeds(lambda: None))
    return frozenset(str(one.name) for one in choosing.params if isinstance(one, click.Option))


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Each command that is no group, with the words that lead to it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, f"{path} {name}")
    else:
        yield path, command


def _option_line(option: click.Option) -> str:
    default = option.to_info_dict()["default"]
    said = ""
    if option.required:
        said = " Required."
    elif isinstance(option.type, Duration) and default is not None:
        said = f" Default: `{exact_duration(parse_duration(str(default)))}`."
    elif not (option.is_flag or default in (None, ())):
        said = f" Default: `{default}`."
    meaning, _, named = (option.help or "").partition(" [default: ")
    if named:
        said = f" Default: {named.removesuffix(']')}."
    return f"- `{'`, `'.join(option.opts)}`: {_with_code(meaning)}{said}"


PAGES: dict[str, Callable[[], dict[str, Callable[[], str]]]] = {
    "settings.md": lambda: {"settings": settings_tables},
    "cli.md": lambda: {"choosing": choosing_options, "commands": command_sections},
    "manifest.md": entry_tables,
    "metrics.md": lambda: {"metrics": metrics_table, "metrics of the fleet": fleet_metrics_table},
    "catalogs.md": catalog_tables,
    "connectors.md": connector_tables,
    "sinks.md": lambda: {"options": partial(option_table, SinkOptions)},
    "../explanation/worker.md": lambda: {"worker": worker_states},
}


def render(page: str) -> str:
    """The page as it should be: what stands there, with its generated tables made anew."""
    text = (HERE / page).read_text()
    for name, table in PAGES[page]().items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        head, found_begin, rest = text.partition(begin)
        _, found_end, tail = rest.partition(end)
        if not (found_begin and found_end):
            raise ValueError(f"{page}: {begin} … {end} is missing")
        text = f"{head}{begin}\n\n{table()}\n\n{end}{tail}"
    return text


def _values(name: str, field: FieldInfo) -> str:
    inner = get_args(field.annotation)
    if inner == (str, SecretStr):
        return "URL"
    if get_origin(field.annotation) is dict:
        return "JSON object"
    if get_origin(field.annotation) is tuple:
        return "list, with commas"
    if type(None) in inner:
        return "JSON object"
    if inner:
        return ", ".join(f"`{choice}`" for choice in inner)
    if isinstance(field.annotation, type) and issubclass(field.annotation, Enum):
        return ", ".join(f"`{choice.value}`" for choice in field.annotation)
    is_duration = name.endswith("_s") and not name.endswith("_per_s")
    kinds: dict[object, str] = {
        SecretStr: "URL",
        str: "text",
        bool: "`true`, `false`",
        int: "integer",
        float: "seconds" if is_duration else "number",
    }
    kind = kinds[field.annotation]
    bounds = {b: getattr(m, b) for m in field.metadata for b in ("ge", "gt", "le") if hasattr(m, b)}
    if bounds == {"ge": 0, "le": 86_400}:  # as the page says of all durations
        return kind
    if "gt" in bounds:
        return f"{kind}, over {bounds['gt']} to {bounds['le']}"
    if "le" in bounds:
        return f"{kind}, {bounds['ge']} to {bounds['le']}"
    return f"{kind}, from {bounds['ge']}" if bounds else kind


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value in ({}, (), "", None):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, dict):
        return f"`{json.dumps(value)}`"
    return f"`{value}`{_size(value)}"


def _size(value: object) -> str:
    """A round number of bytes in words."""
    for unit, size in {"MiB": 2**20, "KiB": 2**10}.items():
        if isinstance(value, int) and value >= size and value % size == 0:
            return f" ({value // size} {unit})"
    return ""


def _says_the_same(base: type[BaseModel], model: type[BaseModel], name: str) -> bool:
    if name not in base.model_fields:
        return False
    one, other = base.model_fields[name], model.model_fields[name]
    return (
        field_docstrings(base)[name] == field_docstrings(model)[name]
        and one.get_default() == other.get_default()
    )


def _kinds(annotation: Any, bounds: str = "") -> Iterator[str]:
    """What a value may be, in words; None is left out."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        for one in inner:
            yield from _kinds(one, bounds)
    elif origin is Annotated:
        yield from _kinds(inner[0], bounds)
    elif origin is Literal:
        yield ", ".join(f"`{choice}`" for choice in inner)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield ", ".join(f"`{choice.value}`" for choice in annotation)
    elif origin is dict:
        yield "mapping"
    elif origin in (list, tuple):
        yield "list of " + " or ".join(_kinds(inner[0])).replace("mapping", "mappings")
    elif annotation in (int, float):
        yield {int: "integer", float: "number"}[annotation] + bounds
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "mapping"
    elif annotation is Any:
        yield "anything"
    elif annotation is not type(None):
        yield {str: "text", SecretStr: "text", bool: "`true`, `false`", Path: "path"}[annotation]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def _bounds(field: FieldInfo) -> str:
    found = {b: getattr(m, b) for m in field.metadata for b in ("ge", "gt", "le") if hasattr(m, b)}
    if not found:
        return ""
    low = found["gt" if "gt" in found else "ge"]
    return f", {_range(low, found.get('le'), is_open='gt' in found)}"


def _range(low: float, high: float | None, *, is_open: bool) -> str:
    least = f"over {_number(low)}" if is_open else _number(low)
    if high is None:
        return least if is_open else f"{least} or more"
    return f"{least} to {_number(high)}" if is_open or low < 0 else f"{least}–{_number(high)}"


def _number(value: float) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _option_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, BaseModel) or value in (None, "", (), [], {}):
        return ""
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if isinstance(value, float):
        return f"`{_number(value)}`"
    return f"`{_cell(str(value))}`{_size(value)}"


def _with_code(text: str) -> str:
    """Help, which a terminal shows as it is, with settings and options marked as code."""
    code = r"(?<![\w-])(?:FEEDQ_[A-Z_]+(?:<[A-Z]+>[A-Z_]*)?|--[a-z]+(?:-[a-z]+)*)"
    parts = text.split("`")
    return _visible(
        "`".join(part if n % 2 else re.sub(code, r"`\g<0>`", part) for n, part in enumerate(parts))
    )


def _cell(text: str) -> str:
    """Text that stays within a cell of a table."""
    return _visible(text.replace("|", r"\|").replace("\n", " "))


def _visible(text: str) -> str:
    """Text that shows what it says: outside of backticks a browser would take <this> for a tag."""
    parts = text.split("`")
    return "`".join(part if n % 2 else part.replace("<", "&lt;") for n, part in enumerate(parts))


def main() -> None:
    for page in PAGES:
        (HERE / page).write_text(render(page))


if __name__ == "__main__":
    main()
