"""The type of a column that takes values as records have them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from feedq.sinks.mapping import ColumnType

BIGINT_MAX = 2**63 - 1


def type_of(values: Sequence[Any]) -> ColumnType:
    """The narrowest type that takes all of them; nulls go into any."""
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
    for kind, read in ((ColumnType.DATE, date.fromisoformat), (ColumnType.TIMESTAMP, datetime.fromisoformat)):
        # Eight digits are a date to Python, and more often a number.
        if text[4:5] == "-":
            try:
                read(text)
            except ValueError:
                continue
            return kind
    return ColumnType.TEXT
