"""How the command speaks: tables and lines for people, one JSON document for programs.

Into a pipe a table is plain text: no colours, no boxes, nothing cut off. Text that came from elsewhere (an
error of a remote server, a name) is made printable first, so that it cannot steer the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from feedq.cli.invocation import Invocation
from feedq.manifest.changes import ABSENT, OptionChange
from feedq.report.details import DetailLine
from feedq.report.masking import masked
from feedq.wording import TONES, Tone, as_json, printable

T = TypeVar("T")
Cell = str | Text | None

STYLES = {Tone.GOOD: "green", Tone.ODD: "yellow", Tone.BAD: "red", Tone.WORST: "bold red", Tone.ASIDE: "dim"}


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[T]):
    """One column of a table: its title, and what it shows of each row. What has no value shows as a dash."""

    title: str
    cell: Callable[[T], Cell]
    right: bool = False

    def show(self, row: T) -> str | Text:
        found = self.cell(row)
        return found if isinstance(found, Text) else "-" if found is None else printable(found)


def number(title: str, cell: Callable[[T], Cell]) -> TableColumn[T]:
    """A column of numbers, which are aligned to the right."""
    return TableColumn(title, cell, right=True)


def state(title: str, cell: Callable[[T], str]) -> TableColumn[T]:
    """A column of statuses or states, in their colours."""
    return TableColumn(title, lambda row: styled(cell(row)))


def styled(word: str) -> Text:
    """A status or state in its colour."""
    tone = TONES.get(word)
    return Text(word, style="" if tone is None else STYLES.get(tone, ""))


# -- what a command answers --------------------------------------------------------------------------


def answer(invocation: Invocation, document: Any, text: str | Callable[[], object]) -> None:
    """Print the document with --json, else the text, or call what prints it. An iterator is printed as a list."""
    if invocation.json:
        write_json(document)
    elif isinstance(text, str):
        click.echo("\n".join(map(printable, text.split("\n"))))
    else:
        text()


def answer_list(
    invocation: Invocation,
    rows: Sequence[T],
    document: Callable[[T], Any],
    columns: Sequence[TableColumn[T]],
    *,
    empty: str,
) -> None:
    """Print the rows as a list of documents with --json, else as a table, or what to say when there are none."""
    answer(invocation, map(document, rows), (lambda: write_table(rows, columns)) if rows else empty)


def answer_done(invocation: Invocation, names: Iterable[str], done: str) -> None:
    """Print what was done to the feeds or schedules of these names."""
    once = dict.fromkeys(names)
    document = [{"name": name, "result": done} for name in once]
    answer(invocation, document, "\n".join(printable(f"{name} {done}") for name in once))


def write_json(document: Any) -> None:
    """One document, then a newline."""
    click.echo(as_json(list(document) if isinstance(document, map) else document, indented=True))


def write_json_line(document: Any) -> None:
    """One document on one line, at once: for commands that go on."""
    click.echo(as_json(document))
    sys.stdout.flush()


# -- tables and lines --------------------------------------------------------------------------------


def write_table(rows: Sequence[T], columns: Sequence[TableColumn[T]]) -> None:
    """A table with a header."""
    if sys.stdout.isatty():
        Console().print(rich_table(rows, columns))
        return
    lines = [[column.title for column in columns]]
    lines += [[str(column.show(row)) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def rich_table(rows: Iterable[T], columns: Sequence[TableColumn[T]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        # Names fold rather than lose their end: a name that cannot be copied is no use.
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        cells = (column.show(row) for column in columns)
        # As Text: markup in somebody's error message is not ours to obey.
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return table


def write_lines(lines: Iterable[DetailLine]) -> None:
    """``name   value`` lines, and below them what keeps its line breaks."""
    lines = list(lines)
    width = max((len(line.name) for line in lines if not line.code), default=0)
    console = Console(soft_wrap=True) if sys.stdout.isatty() else None
    for line in lines:
        if line.code:
            continue
        if console is not None:
            console.print(Text.assemble((line.name.ljust(width), "bold"), "  ", styled(line.text)))
        else:
            click.echo(f"{line.name.ljust(width)}  {line.text}")
    for line in lines:
        if line.code:
            click.echo("\n  ".join([line.name, *line.text.split("\n")]))


def write_difference(changes: Iterable[OptionChange]) -> None:
    for change in changes:
        click.echo(f"    {change.option}: {_shown(change.before)} -> {_shown(change.after)}")


def _shown(value: Any) -> str:
    return ABSENT if value is ABSENT else printable(as_json(masked(value)))


def styled_step(name: str, outcome: str, detail: str) -> str:
    """A line for a step of several: its outcome first, in its colour."""
    colours = {"ok": "green", "failed": "red", "skipped": "yellow"}
    return f"{click.style(outcome.ljust(7), fg=colours[outcome])}  {name.ljust(11)}  {detail}".rstrip()


def warn(text: str) -> None:
    click.echo(f"Warning: {printable(text)}", err=True)
