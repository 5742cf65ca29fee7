"""Options of connectors whose records tell where to resume, which `feedq.connectors.records.framing` reads."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property

from pydantic import ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, check_format
from feedq.connectors.records.framing import CursorReader, Framed
from feedq.model import JSON, Batch

__all__ = ["CursorOptions", "CursorReader"]

_EPOCH = datetime.fromtimestamp(0, UTC)
_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


class CursorOptions(ConnectorOptions):
    """Where in a record its cursor is."""

    cursor: str | None = None
    """JSON pointer to what to resume after in each record, such as `/seq`; needs `format` `json` or `csv`."""

    @field_validator("cursor")
    @classmethod
    def _check_cursor(cls, cursor: str | None, info: ValidationInfo) -> str | None:
        if cursor is not None:
            check_format(info, "json", "csv")
            CursorReader(cursor, csv=info.data.get("csv"))
        return cursor

    @cached_property
    def cursor_reader(self) -> CursorReader | None:
        """What reads cursors; None: records have none, and the cursor of the feed stays what it is."""
        # It keeps nothing of what it reads: one for all feeds that share these options.
        return None if self.cursor is None else CursorReader(self.cursor, csv=self.csv)

    def cursor_back(self, cursor: JSON, records: int) -> JSON:
        """The source is taken to number its records one by one."""
        if isinstance(cursor, int) and not isinstance(cursor, bool):
            return max(0, cursor - records) if cursor >= 0 else cursor - records
        if isinstance(cursor, str) and _WHOLE_NUMBER.fullmatch(cursor):
            return str(self.cursor_back(int(cursor), records))
        raise ValueError("it is no whole number, so that nobody can count back from it")

    def cursor_place(self, cursor: JSON) -> int:
        """The number or the time that it is."""
        if self.cursor is None:
            raise ValueError("without source.cursor no record tells where it lies")
        if isinstance(cursor, int) and not isinstance(cursor, bool):
            return cursor
        if isinstance(cursor, str) and _WHOLE_NUMBER.fullmatch(cursor):
            return int(cursor)
        with suppress(ValueError):
            at = datetime.fromisoformat(cursor) if isinstance(cursor, str) else None
            if at is not None:
                return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
        raise ValueError(
            "it is neither a whole number nor a time, so that nobody can tell what comes after it"
        )

    def cursor_said(self, said: JSON, like: JSON) -> JSON:
        """A number is as good as its digits, where the source has the one or the other."""
        if isinstance(like, str) and isinstance(said, int):
            return str(said)
        if isinstance(like, int) and isinstance(said, str) and _WHOLE_NUMBER.fullmatch(said):
            return int(said)
        return said

    def cut(self, batch: Batch, ends_at: int, before: JSON) -> Batch | None:
        reader = self.cursor_reader
        assert reader is not None, "its cursors would have no place"
        kept: list[bytes] = []
        cursor = before
        for record in batch.split():
            found = reader.after(Framed(records=(record,)), None)
            if found is not None and self.cursor_place(found) > ends_at:
                break
            kept.append(record)
            cursor = cursor if found is None else self.cursor_said(found, before)
        return Framed.of(kept).batch(cursor=cursor, received_at=batch.received_at) if kept else None
