"""Option of connectors whose records say themselves where to resume.

A base for their options, beside others such as `feedq.connectors.records.framing_options.FramingOptions`.
"""

from __future__ import annotations

from functools import cached_property

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions
from feedq.connectors.records.cursor import CursorReader


class CursorOptions(ConnectorOptions):
    """Where in a record its cursor is."""

    cursor: str | None = Field(
        default=None,
        description="JSON pointer to what to resume after in each record, such as `/seq`; "
        "needs `format` `json` or `csv`.",
    )

    @field_validator("cursor")
    @classmethod
    def _check_cursor(cls, cursor: str | None, info: ValidationInfo) -> str | None:
        if cursor is not None:
            kind = info.data.get("format", "json")
            if kind not in ("json", "csv"):
                raise ValueError(f"needs source.format json or csv, not {kind}")
            CursorReader(cursor, csv=info.data.get("csv"))
        return cursor

    def cursor_reader(self) -> CursorReader | None:
        """None: records have no cursor, and that of the feed stays what it is."""
        return self._cursor_reader

    @cached_property
    def _cursor_reader(self) -> CursorReader | None:
        # It keeps nothing of what it reads: one for all feeds that share these options.
        return None if self.cursor is None else CursorReader(self.cursor, csv=self.csv)
