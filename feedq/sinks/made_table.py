"""The columns of a table that a sink makes for a feed: by `sink.columns`, with the types that `sink.types` gives.

A column without a type gets that of its origin: what points into a record is text, which takes anything. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from feedq.sinks.base import Target
from feedq.sinks.mapping import ColumnSource, ColumnType, Origin

_BY_ORIGIN = {Origin.EPOCH: ColumnType.BIGINT, Origin.RECEIVED_AT: ColumnType.TIMESTAMP}
_BY_FORMAT = {"json": ColumnType.JSON, "bytes": ColumnType.BYTES}


def made_columns(target: Target) -> Iterator[tuple[str, ColumnType]]:
    """Yields the columns of the table that is made for a target, in their order, with their types."""
    types = dict(target.types)
    for source in target.columns:
        given = types.get(source.column)
        yield source.column, _type_of(source, target) if given is None else ColumnType(given)


def _type_of(source: ColumnSource, target: Target) -> ColumnType:
    if source.origin is Origin.RECORD:
        return _BY_FORMAT.get(target.format, ColumnType.TEXT)
    return _BY_ORIGIN.get(source.origin, ColumnType.TEXT)
