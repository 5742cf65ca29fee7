"""How the command speaks: tables and lines for people, one JSON document for programs.

Colours are for terminals: into a pipe goes plain text. Text that came from elsewhere (an error of a remote server,
a name) is made printable first, so that it cannot steer the terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Generic, TypeVar

import click

from feedq.cli.invocation import Form, Invocation
from feedq.cli.lazily import lazily

with lazily():
    from msgspec import json as msgspec_json

    from feedq.core import differences, passwords
    from feedq.verbs import details, registry, wording
    from feedq.verbs.diagnosis import checks

T = TypeVar("T")
Cell = str | None

STYLES: dict[str, dict[str, Any]] = {
    "good": {"fg": "green"},
    "odd": {"fg": "yellow"},
    "bad": {"fg": "red"},
    "worst": {"fg": "red", "bold": True},
    "aside": {"dim": True},
}
"""By the tone of a word."""


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[T]):
    """Describes one column of a table: its title, and what it shows of each row, a dash for no value."""

    title: str
    cell: Callable[[T], Cell]
    right: bool = False
    is_state: bool = False
    """Whether it shows words for statuses or states, which have their colours."""

    def show(self, row: T) -> str:
        found = self.cell(row)
        return "-" if found is None else wording.printable(found)


def number(title: str, cell: Callable[[T], Cell]) -> TableColumn[T]:
    """Makes a column of numbers, which are aligned to the right."""
    return TableColumn(title, cell, right=True)


def state(title: str, cell: Callable[[T], Cell]) -> TableColumn[T]:
    """Makes a column of statuses or states, in their colours."""
    return TableColumn(title, cell, is_state=True)


def styled(text: str, word: str | None = None) -> str:
    """Gives a text the colour of the status or state that it is, or that it is about."""
    return click.style(text, **STYLES.get(checks.TONES.get(word or text, ""), {}))


def say(text: str, *, err: bool = False) -> None:
    """Writes lines of text that may come from elsewhere."""
    click.echo(wording.printable_lines(text), err=err)


def warn(text: str) -> None:
    say(f"Warning: {text}", err=True)


# -- what a command answers --------------------------------------------------------------------------


def answer(invocation: Invocation, document: Any, *parts: str | Sequence[str] | Callable[[], object]) -> None:
    """Prints the document with --json; else each part that is not empty, with a blank line in between.

    A part is a text, or lines that are ready to be printed, such as those of a table, or prints itself."""
    if invocation.json:
        click.echo(msgspec_json.format(registry.encode(document), indent=2))
        return
    for position, part in enumerate(part for part in parts if part):
        if position:
            click.echo()
        if isinstance(part, str):
            say(part)
        elif callable(part):
            part()
        else:
            for line in part:
                click.echo(line)


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
    answer(invocation, rows, table_lines(rows, columns) or empty)


def first(found: Iterator[T], limit: int | None, *, of: str = "newest") -> list[T]:
    """The first so many, and a word on standard error when there are more: no list may end unnoticed."""
    rows = list(islice(found, limit))
    if limit is not None and next(found, None) is not None:
        click.echo(f"these are the {of} {limit:,}; a larger --limit shows more", err=True)
    return rows


def write_json_line(document: Any) -> None:
    """Writes one document on one line, at once: for commands that go on."""
    click.echo(registry.encode(document))
    sys.stdout.flush()


# -- tables and lines --------------------------------------------------------------------------------


def table_lines(
    rows: Sequence[T], columns: Sequence[TableColumn[T]], *, width: int | None = None
) -> list[str]:
    """The lines of a table, in colour, the header first, at most ``width`` characters long; none without rows."""
    cells = [[column.title for column in columns]]
    cells += [[column.show(row) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*cells, strict=True)]
    lines: list[str] = []
    for line in cells:
        left, shown = width, list[str]()
        for cell, size, column in zip(line, widths, columns, strict=True):
            padded = (
                cell.rjust(size) if column.right else cell.ljust(size if column is not columns[-1] else 0)
            )
            padded = padded if left is None else padded[: max(left, 0)]
            left = None if left is None else left - size - 2
            if column.is_state:
                padded = styled(padded, cell.partition(" ")[0])
            shown.append(padded if lines else click.style(padded, bold=True))
        lines.append("  ".join(shown).rstrip())
    return lines if rows else []


def fact_lines(facts: Sequence[details.Fact], declaration: Any = None) -> list[str]:
    """The lines ``name   value``, and below them what was declared."""
    shown = details.shown_facts(facts)
    width = max((len(name) for name, _ in shown), default=0)
    lines = [f"{click.style(name.ljust(width), bold=True)}  {styled(text)}" for name, text in shown]
    if declaration:
        lines.append("\n  ".join(["declaration", *details.declaration_text(declaration).split("\n")]))
    return lines


def write_difference(changes: Iterable[differences.OptionChange]) -> None:
    for change in changes:
        click.echo(f"    {change.option}: {_shown(change.before)} -> {_shown(change.after)}")


def _shown(value: Any) -> str:
    if value == differences.ABSENT:
        return differences.ABSENT
    return wording.printable(wording.as_json(passwords.masked(value)))


# -- progress ------------------------------------------------------------------------------------------

SHOWN_AFTER_S = 1.0
EVERY_S = 0.1


class ProgressLine:
    """Call it with how many are done; it shows itself after a second, on a terminal only. A context: it clears its
    line at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shows_at = time.monotonic() + SHOWN_AFTER_S
        self._is_shown = False
        self.may_show = sys.stderr.isatty()

    def __call__(self, done: int, total: int | None = None) -> None:
        now = time.monotonic()
        if self.may_show and now >= self._shows_at:
            self._shows_at, self._is_shown = now + EVERY_S, True
            of = "" if total is None else f" of {total:,}"
            click.echo(f"\r\x1b[K{done:,}{of} {self._what}", err=True, nl=False)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            click.echo("\r\x1b[K", err=True, nl=False)
