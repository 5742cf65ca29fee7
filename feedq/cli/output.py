"""How the command speaks: tables and lines for people, one JSON document for programs.

Into a pipe a table is plain text: no colours, no boxes, nothing cut off. Text that came from elsewhere (an
error of a remote server, a name) is made printable first, so that it cannot steer the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from feedq.model import Status, WorkerState, WorkerTarget
from feedq.schedule.model import RunState

Cell = str | Text

STYLES = {
    Status.STREAMING.value: "green",
    Status.STALLED.value: "yellow",
    Status.BACKOFF.value: "yellow",
    Status.WAITING.value: "yellow",
    Status.FAILING.value: "red",
    Status.REFUSING.value: "red",
    Status.SINK_UNAVAILABLE.value: "red",
    Status.QUARANTINED.value: "bold red",
    Status.FAILED.value: "bold red",
    Status.PAUSED.value: "dim",
    WorkerState.ACTIVE.value: "green",
    WorkerState.DRAINING.value: "yellow",
    WorkerState.GONE.value: "dim",
    WorkerTarget.CORDONED.value: "yellow",
    WorkerTarget.DRAINED.value: "yellow",
    RunState.SUCCEEDED.value: "green",
    # `failed` is that of feeds.
    RunState.TIMED_OUT.value: "bold red",
    RunState.LOST.value: "bold red",
    RunState.CANCELLED.value: "dim",
    RunState.SKIPPED_OVERLAP.value: "yellow",
    RunState.MISSED_DEADLINE.value: "yellow",
    RunState.MISSED_CATCHUP.value: "yellow",
}


def write_json(document: Any) -> None:
    """One document, then a newline."""
    try:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        # A cursor may hold an integer beyond 64 bits, which orjson refuses.
        text = json.dumps(document, indent=2, default=str)
    click.echo(text)


def write_json_line(document: Any) -> None:
    """One document on one line, at once: for commands that go on."""
    click.echo(orjson.dumps(document))
    sys.stdout.flush()


def write_table(titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: str = "") -> None:
    """A table with a header; ``right`` names the titles to align to the right, separated by spaces."""
    numeric = set(right.split())
    if sys.stdout.isatty():
        Console().print(rich_table(titles, rows, right=numeric))
        return
    plain = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *plain, strict=True)]
    for row in (list(titles), *plain):
        cells = [
            cell.rjust(width) if title in numeric else cell.ljust(width)
            for cell, width, title in zip(row, widths, titles, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def rich_table(titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: set[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        # Names fold rather than lose their end: a name that cannot be copied is no use.
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        # As Text: markup in somebody's error message is not ours to obey.
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table


def write_facts(facts: Sequence[tuple[str, Cell | None]]) -> None:
    """``name   value`` lines; what has no value is left out."""
    kept = [(name, value) for name, value in facts if value is not None]
    width = max((len(name) for name, _ in kept), default=0)
    console = Console(soft_wrap=True) if sys.stdout.isatty() else None
    for name, value in kept:
        if console is not None:
            console.print(Text.assemble((name.ljust(width), "bold"), "  ", value))
        else:
            click.echo(f"{name.ljust(width)}  {value}")


def styled_step(name: str, outcome: str, detail: str) -> str:
    """A line for a step of several: its outcome first, in its colour."""
    colours = {"ok": "green", "failed": "red", "skipped": "yellow"}
    return f"{click.style(outcome.ljust(7), fg=colours[outcome])}  {name.ljust(11)}  {detail}".rstrip()


def warn(text: str) -> None:
    click.echo(f"Warning: {text}", err=True)


def styled(word: str) -> Text:
    """A status or state in its colour."""
    return Text(word, style=STYLES.get(word, ""))
