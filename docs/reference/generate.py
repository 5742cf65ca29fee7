"""Writes what the code already knows: the tables of settings and metrics, and the states of a lease.

``make docs`` runs it; a test fails while a page differs from what it would write. Each stands between two
comments, ``<!-- name: begin -->`` and ``<!-- name: end -->``; everything around them is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

from prometheus_client.metrics import MetricWrapperBase
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from feedq import lease, telemetry
from feedq.model import LeaseState
from feedq.settings import Settings

HERE = Path(__file__).parent

SECTIONS = {
    "database_url": "Connections",
    "heartbeat_s": "Ownership and the control plane",
    "job_slots": "The worker",
    "flush_interval_s": "Writing to the sink",
    "backoff_base_s": "Reconnecting",
    "log_level": "Log",
}
"""The setting that each section of the table begins with."""


def settings_tables() -> str:
    lines: list[str] = []
    for name, field in Settings.model_fields.items():
        if name in SECTIONS:
            lines += ["", f"## {SECTIONS[name]}", ""]
            lines += ["| variable | values | default | meaning |", "|---|---|---|---|"]
        variable = f"FEEDQ_{name.upper()}" + ("__<NAME>" if name == "sinks" else "")
        lines.append(f"| `{variable}` | {_values(field)} | {_default(field)} | {field.description} |")
    return "\n".join(lines[1:])


def metrics_table() -> str:
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    metrics = [m for m in vars(telemetry).values() if isinstance(m, MetricWrapperBase)]
    for metric in metrics:
        for family in metric.describe():
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)
            lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(lines)


def lease_states() -> str:
    """The diagram of the states, and the moves as a table."""
    arrows: dict[tuple[LeaseState, LeaseState], list[str]] = {}
    rows = ["| move | from | to | epoch |", "|---|---|---|---|"]
    for (before, move), after in lease.TRANSITIONS.items():
        grows = move in lease.EPOCH_GROWS
        arrows.setdefault((before, after), []).append(f"{move}{' (epoch + 1)' if grows else ''}")
        rows.append(f"| `{move}` | `{before}` | `{after}` | {'grows' if grows else 'stays'} |")
    diagram = [f"    {before} --> {after}: {', '.join(moves)}" for (before, after), moves in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> idle", *diagram, "```", "", *rows])


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "settings.md": {"settings": settings_tables},
    "metrics.md": {"metrics": metrics_table},
    "../explanation/lease.md": {"lease": lease_states},
}


def render(page: str) -> str:
    """The page as it should be: what stands there, with its generated tables made anew."""
    text = (HERE / page).read_text()
    for name, table in PAGES[page].items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        head, found_begin, rest = text.partition(begin)
        _, found_end, tail = rest.partition(end)
        if not (found_begin and found_end):
            raise ValueError(f"{page}: {begin} … {end} is missing")
        text = f"{head}{begin}\n\n{table()}\n\n{end}{tail}"
    return text


def _values(field: FieldInfo) -> str:
    inner = get_args(field.annotation)
    if inner == (str, SecretStr):
        return "URL"
    if inner == (str, str):
        return "JSON object"
    if inner:
        return ", ".join(f"`{choice}`" for choice in inner)
    kinds: dict[object, str] = {SecretStr: "URL", str: "text", int: "integer", float: "seconds"}
    kind = kinds[field.annotation]
    bounds = {b: getattr(m, b) for m in field.metadata for b in ("ge", "gt", "le") if hasattr(m, b)}
    if "gt" in bounds:
        return f"{kind}, over {bounds['gt']} to {bounds['le']}"
    if "le" in bounds:
        return f"{kind}, {bounds['ge']} to {bounds['le']}"
    return f"{kind}, from {bounds['ge']}" if bounds else kind


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value == {}:
        return "none"
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, int) and value >= 2**20 and value % 2**20 == 0:
        return f"`{value}` ({value // 2**20} MiB)"
    return f"`{value}`"


def main() -> None:
    for page in PAGES:
        (HERE / page).write_text(render(page))


if __name__ == "__main__":
    main()
