"""Where the columns of a row come from: the ``columns`` of a feed's sink, checked and taken apart. Pure.

A column is given as a string or as a rule:

* ``/price`` is a JSON pointer into the record, and ``""`` the whole record;
* ``$feed``, ``$epoch``, ``$cursor`` and ``$received_at`` are what feedq knows of the record;
* ``{value: 7}`` is a constant;
* ``{pointer: /price, missing: refuse, null: default, default: 0}`` says what becomes of a record that has
  nothing there, or a ``null``: the column gets NULL (which is the default), or the default value, or the
  record is refused and goes to the dead letters.

With ``flatten`` a column of the table that is not given is filled by its name: see `flattened`.

In a CSV record a pointer is one name of a field, and a value has no type: the field's text goes to the
column as it is. An unquoted empty field is a null, and none is ever missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from itertools import combinations, pairwise
from typing import Any, Final

import msgspec
from pydantic import model_validator

from feedq.core.values import StrictModel
from feedq.records.pointer import parse_pointer

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII)
"""To the microsecond, as databases keep it."""


class Origin(StrEnum):
    """The origin of a column's value."""

    RECORD = "record"
    """The record's own bytes."""
    POINTER = "pointer"
    CONSTANT = "constant"
    FEED = "$feed"
    EPOCH = "$epoch"
    CURSOR = "$cursor"
    """The cursor of the record's batch, as JSON: every record of a batch has the same."""
    RECEIVED_AT = "$received_at"


class Otherwise(StrEnum):
    """The value of a column in place of one that is missing, or null."""

    NULL = "null"
    DEFAULT = "default"
    REFUSE = "refuse"
    """Nothing: the record goes to the dead letters."""


class ColumnType(StrEnum):
    """The type of a column that is made: few, and of the same names for every database."""

    TEXT = "text"
    BIGINT = "bigint"
    NUMERIC = "numeric"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    """A moment, with its zone where the database knows zones."""
    DATE = "date"
    JSON = "json"
    BYTES = "bytes"


class Drift(StrEnum):
    """What to do about a field of a record that no column takes."""

    IGNORE = "ignore"
    """Nothing looks for one."""
    EVENT = "event"
    """It is reported, once."""
    ADD = "add"
    """It is reported, and a column of that name is filled from it as soon as the table has one."""


METADATA = (Origin.FEED, Origin.EPOCH, Origin.CURSOR, Origin.RECEIVED_AT)
BIGINT_MAX: Final = 2**63 - 1
SEPARATORS_MAX: Final = 8
"""In the name of a column that is flattened: there are two to their power ways to take it apart."""


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """The source of one column: how it gets its value. ``constant`` and ``default`` are JSON texts."""

    column: str
    origin: Origin
    pointer: str = ""
    constant: str = "null"
    missing: Otherwise = Otherwise.NULL
    null: Otherwise = Otherwise.NULL
    default: str = "null"
    alternatives: tuple[str, ...] = ()
    """Pointers to try in their order where there is nothing at ``pointer``."""


DEFAULT_SOURCES: Final = (
    ColumnSource("feed", Origin.FEED),
    ColumnSource("epoch", Origin.EPOCH),
    ColumnSource("received_at", Origin.RECEIVED_AT),
    ColumnSource("payload", Origin.RECORD),
)
"""Of a target without ``columns``."""
DEFAULT_COLUMNS: Final = tuple(source.column for source in DEFAULT_SOURCES)


class ColumnRule(StrictModel):
    """The long form of a column."""

    pointer: str | None = None
    """JSON pointer into the record."""
    value: Any = None
    """A constant, instead of a pointer."""
    missing: Otherwise = Otherwise.NULL
    """What to use if the record has nothing there."""
    null: Otherwise = Otherwise.NULL
    """What to use if the record has a null there."""
    default: Any = None
    """Value for `default`."""

    @model_validator(mode="after")
    def _check(self) -> ColumnRule:
        given = self.model_fields_set
        if ("pointer" in given) == ("value" in given):
            raise ValueError("needs either pointer or value")
        if self.pointer is not None:
            _check_pointer(self.pointer)
        if not self.pointer and given & {"missing", "null", "default"}:
            raise ValueError("missing, null and default go with a pointer into the record")
        uses_default = Otherwise.DEFAULT in (self.missing, self.null)
        if uses_default != ("default" in given):
            raise ValueError(
                "default needs missing: default or null: default"
                if "default" in given
                else "missing or null is default, and there is no default"
            )
        return self


def check_column(text: str) -> str:
    """The short form of a column. Raises `ValueError`."""
    if text.startswith("$"):
        known = [origin.value for origin in METADATA]
        if text not in known:
            raise ValueError(f"{text!r} is not known; feedq knows {', '.join(known)}")
    else:
        _check_pointer(text)
    return text


def sources_of(columns: Mapping[str, str | ColumnRule]) -> tuple[ColumnSource, ...]:
    """The columns taken apart, in their order."""
    return tuple(_source(name, given) for name, given in columns.items())


def flattened(column: str, separator: str) -> ColumnSource:
    """A column filled by its name: member names joined by ``separator`` are the column's.

    There are several such paths, since a member's name may hold the separator itself: ``a_b_c`` is ``/a_b_c``,
    ``/a_b/c``, ``/a/b_c`` or ``/a/b/c``. The first of them at which the record has anything counts, shorter
    ones before longer ones, and among equals the one whose earlier names are longer.

    Raises `ValueError` for a name that can be taken apart in too many ways.
    """
    parts = column.split(separator)
    if len(parts) - 1 > SEPARATORS_MAX:
        raise ValueError(
            f"{separator!r} is more than {SEPARATORS_MAX} times in the name of column {column!r}"
        )
    paths = []
    for cuts in range(len(parts)):
        for places in reversed(list(combinations(range(1, len(parts)), cuts))):
            bounds = [0, *places, len(parts)]
            names = [separator.join(parts[begin:end]) for begin, end in pairwise(bounds)]
            paths.append(pointer_to(*names))
    return ColumnSource(column, Origin.POINTER, paths[0], alternatives=tuple(paths[1:]))


def pointer_to(*names: str) -> str:
    """The JSON pointer along members of these names."""
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


def unknown_field(columns: Sequence[ColumnSource], fields: Sequence[str]) -> str | None:
    """What is wrong with columns that point into CSV records with these fields; None when nothing is."""
    for source in columns:
        if source.origin is Origin.POINTER:
            name, *deeper = parse_pointer(source.pointer)
            if deeper or name not in fields:
                known = ", ".join(map(repr, fields))
                return (
                    f"sink.columns: column {source.column!r} points at {source.pointer}, which is not a field of "
                    f"the records; source.csv.fields has {known}"
                )
    return None


def _source(column: str, given: str | ColumnRule) -> ColumnSource:
    if isinstance(given, str):
        if given.startswith("$"):
            return ColumnSource(column, Origin(given))
        return ColumnSource(column, Origin.POINTER if given else Origin.RECORD, given)
    if given.pointer is None:
        return ColumnSource(column, Origin.CONSTANT, constant=msgspec.json.encode(given.value).decode())
    return ColumnSource(
        column,
        Origin.POINTER if given.pointer else Origin.RECORD,
        given.pointer,
        missing=given.missing,
        null=given.null,
        default=msgspec.json.encode(given.default).decode(),
    )


def _check_pointer(text: str) -> None:
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r} is not a JSON pointer; it must begin with '/'")
    parse_pointer(text)


def type_of(values: Sequence[Any]) -> ColumnType:
    """The narrowest type of a column that takes all of these values; nulls go into any."""
    kinds = {_kind(value) for value in values if value is not None}
    if kinds == {ColumnType.BIGINT, ColumnType.NUMERIC}:
        return ColumnType.NUMERIC
    if kinds == {ColumnType.DATE, ColumnType.TIMESTAMP}:
        return ColumnType.TEXT
    if ColumnType.JSON in kinds:
        return ColumnType.JSON
    return kinds.pop() if len(kinds) == 1 else ColumnType.TEXT


def _kind(value: Any) -> ColumnType:
    match value:
        case bool():
            return ColumnType.BOOLEAN
        case int():
            return ColumnType.BIGINT if abs(value) <= BIGINT_MAX else ColumnType.NUMERIC
        case float():
            return ColumnType.NUMERIC
        case str():
            return _kind_of_text(value)
    return ColumnType.JSON


def _kind_of_text(text: str) -> ColumnType:
    kinds = ((ColumnType.DATE, _DATE, date), (ColumnType.TIMESTAMP, _TIMESTAMP, datetime))
    for kind, form, read in kinds:
        if form.fullmatch(text):
            with suppress(ValueError):
                read.fromisoformat(text)
                return kind
    return ColumnType.TEXT
