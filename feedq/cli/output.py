"""How the command speaks: tables, lines and bars for people, one JSON document for programs.

Into a pipe a table is plain text: no colours, no boxes, nothing cut off. Text that came from elsewhere (an
error of a remote server, a name) is made printable first, so that it cannot steer the terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from feedq.cli.invocation import Form, Invocation

if TYPE_CHECKING:
    from rich.table import Table

    from feedq.verbs.manifest.changes import OptionChange
    from feedq.verbs.report.details import DetailLine

T = TypeVar("T")
Cell = str | None

# rich is imported where something is drawn: into a pipe nothing is.

STYLES = {"good": "green", "odd": "yellow", "bad": "red", "worst": "bold red", "aside": "dim"}
"""By the tone of a word."""


class Styled(str):
    """Text of ours with a style of rich's."""

    style: str

    def __new__(cls, text: str, style: str) -> Styled:
        made = super().__new__(cls, text)
        made.style = style
        return made


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[T]):
    """Describes one column of a table: its title, and what it shows of each row, a dash for no value."""

    title: str
    cell: Callable[[T], Cell]
    right: bool = False

    def show(self, row: T) -> str:
        from feedq.verbs.wording import printable

        found = self.cell(row)
        return found if isinstance(found, Styled) else "-" if found is None else printable(found)


def number(title: str, cell: Callable[[T], Cell]) -> TableColumn[T]:
    """Makes a column of numbers, which are aligned to the right."""
    return TableColumn(title, cell, right=True)


def state(title: str, cell: Callable[[T], str]) -> TableColumn[T]:
    """Makes a column of statuses or states, in their colours."""
    return TableColumn(title, lambda row: styled(cell(row)))


def styled(word: str, *, after: str = "") -> Styled:
    """Gives a status or state its colour, and adds what stands after it."""
    from feedq.verbs.troubles import TONES

    tone = TONES.get(word)
    return Styled(word + after, "" if tone is None else STYLES.get(tone, ""))


# -- what a command answers --------------------------------------------------------------------------


def answer(invocation: Invocation, document: Any, text: str | Callable[[], object]) -> None:
    """Prints the document with --json, else the text, or calls what prints it."""
    from feedq.verbs.wording import printable

    if invocation.form is Form.YAML:
        write_yaml(document)
    elif invocation.json:
        write_json(document)
    elif isinstance(text, str):
        click.echo("\n".join(map(printable, text.split("\n"))))
    else:
        text()


def answer_list(
    invocation: Invocation,
    rows: Sequence[T],
    columns: Sequence[TableColumn[T]],
    *,
    empty: str,
    wide: Sequence[TableColumn[T]] = (),
) -> None:
    """Prints the rows as a list with --json, else as a table, or what to say when there are none.

    The first column is a row's name; ``wide`` are columns for those who ask for more.
    """
    if invocation.form is Form.NAME:
        for row in rows:
            click.echo(columns[0].show(row))
        return
    if invocation.form is Form.WIDE:
        columns = [*columns, *wide]
    answer(invocation, rows, (lambda: write_table(rows, columns)) if rows else empty)


def write_json(document: Any) -> None:
    """Writes one document, then a newline."""
    import msgspec

    from feedq.verbs.registry import encode

    click.echo(msgspec.json.format(encode(document), indent=2))


def write_yaml(document: Any) -> None:
    """Writes one document, with the same fields as the JSON."""
    import msgspec

    from feedq.verbs import documents
    from feedq.verbs.registry import encode

    click.echo(documents.dump(msgspec.json.decode(encode(document))), nl=False)


def write_json_line(document: Any) -> None:
    """Writes one document on one line, at once: for commands that go on."""
    from feedq.verbs.registry import encode

    click.echo(encode(document))
    sys.stdout.flush()


# -- tables and lines --------------------------------------------------------------------------------


def write_table(rows: Sequence[T], columns: Sequence[TableColumn[T]]) -> None:
    """Writes a table with a header."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(rich_table(rows, columns))
        return
    lines = [[column.title for column in columns]]
    lines += [[column.show(row) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def rich_table(rows: Iterable[T], columns: Sequence[TableColumn[T]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        # Names fold rather than lose their end: a name that cannot be copied is no use.
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        cells = [column.show(row) for column in columns]
        # As Text: markup in somebody's error message is not ours to obey.
        table.add_row(*(Text(cell, style=cell.style if isinstance(cell, Styled) else "") for cell in cells))
    return table


def write_lines(lines: Iterable[DetailLine]) -> None:
    """Writes ``name   value`` lines, and below them what keeps its line breaks."""
    lines = list(lines)
    width = max((len(line.name) for line in lines if not line.code), default=0)
    for line in lines:
        if not line.code:
            _write_line(line, width)
    for line in lines:
        if line.code:
            click.echo("\n  ".join([line.name, *line.text.split("\n")]))


def _write_line(line: DetailLine, width: int) -> None:
    if not sys.stdout.isatty():
        click.echo(f"{line.name.ljust(width)}  {line.text}")
        return
    from rich.console import Console
    from rich.text import Text

    text = styled(line.text)
    line_shown = Text.assemble((line.name.ljust(width), "bold"), "  ", (text, text.style))
    Console(soft_wrap=True).print(line_shown)


def write_difference(changes: Iterable[OptionChange]) -> None:
    for change in changes:
        click.echo(f"    {change.option}: {_shown(change.before)} -> {_shown(change.after)}")


def _shown(value: Any) -> str:
    from feedq.verbs.manifest.changes import ABSENT
    from feedq.verbs.report.masking import masked
    from feedq.verbs.wording import as_json, printable

    return ABSENT if value == ABSENT else printable(as_json(masked(value)))


def styled_step(name: str, outcome: str, detail: str) -> str:
    """Makes a line for a step of several: its outcome first, in its colour."""
    colours = {"ok": "green", "failed": "red", "skipped": "yellow", "warn": "yellow"}
    return f"{click.style(outcome.ljust(7), fg=colours[outcome])}  {name.ljust(11)}  {detail}".rstrip()


def warn(text: str) -> None:
    from feedq.verbs.wording import printable

    click.echo(f"Warning: {printable(text)}", err=True)


# -- progress ------------------------------------------------------------------------------------------

SHOWN_AFTER_S = 1.0
EVERY_S = 0.1
WIDTH = 30


class ProgressBar:
    """Call it with how many are done; it shows itself after a second, on a terminal only. A context: it clears its
    line at the end."""

    def __init__(self, what: str, total: int | None = None) -> None:
        """Without a ``total`` it counts."""
        self._what, self._total = what, total
        self._started = self._drawn = time.monotonic()
        self._is_shown = False
        self.may_show = sys.stderr.isatty()

    def __call__(self, done: int, total: int | None = None) -> None:
        self._total = self._total if total is None else total
        now = time.monotonic()
        if not self.may_show or now - self._started < SHOWN_AFTER_S or now - self._drawn < EVERY_S:
            return
        self._drawn, self._is_shown = now, True
        click.echo(f"\r\x1b[K{self._line(done, now - self._started)}", err=True, nl=False)

    def _line(self, done: int, passed_s: float) -> str:
        if self._total is None:
            return f"{done:,} {self._what}, {done / max(passed_s, 0.001):,.0f} a second"
        filled = min(WIDTH, WIDTH * done // max(self._total, 1))
        left_s = passed_s * max(0, self._total - done) / max(done, 1)
        bar = "#" * filled + "-" * (WIDTH - filled)
        return f"{bar}  {done:,} of {self._total:,} {self._what}, {left_s:.0f} s left"

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            click.echo("\r\x1b[K", err=True, nl=False)
