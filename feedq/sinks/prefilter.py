"""The prefilter sets aside records that surely cannot land, many at a time.

When a batch is refused, the culprits could be found by bisection alone (`feedq.sinks.refusals`), which does find
whatever is left here. But a source gone wrong sends nothing but bad records, and each of them would cost two
attempts while every other feed of the worker waits. So the usual reasons are looked for first: no UTF-8, no
JSON, a NUL, and, from PostgreSQL 16 on, whatever the input functions of the columns say. A record is set aside
only if the database would surely refuse it: a NULL in a column that is NOT NULL is not looked for, because a
trigger of the table, or of the partition that a row goes to, may fill it. Input functions that raise an error when
they are asked leave their records to trial.

`Prefilter.validate` judges every record so. `Prefilter.run` judges only the few of a write that look suspicious;
what it overlooks makes the group fail, and then `validate` finds it.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import add, length_hint
from typing import Any, Final

import msgspec
import psycopg2

from feedq.core.model import Batch
from feedq.records.framing import RecordFormat
from feedq.sinks.base import DeadRecord, FeedWrite, SuspectRecord, Target
from feedq.sinks.copytext import UnreadableRecord, encode
from feedq.sinks.postgresql_session import PostgresSinkSession
from feedq.sinks.session import ERROR_TEXT_MAX, ErrorScope, parts
from feedq.sinks.statements import INPUT_ERRORS
from feedq.sinks.target_table import TableShape

ASKS_INPUT_FUNCTIONS: Final = 160_000
"""Server version from which `INPUT_ERRORS` works."""
ASKED_AT_ONCE: Final = 2_000
NUL_ERROR: Final = 'invalid byte sequence for encoding "UTF8": 0x00 (22021)'
NUL: Final = b"\0"
NUL_ESCAPED: Final = b"\\u0000"

Fields = list[str | None]

_parse: Final = msgspec.json.Decoder(msgspec.Raw).decode


class Prefilter:
    """Sets aside records of one target. Methods raise `psycopg2.Error`."""

    def __init__(
        self,
        session: PostgresSinkSession,
        target: Target,
        shape: TableShape,
        *,
        read: Callable[[FeedWrite, Batch, bytes], Fields],
        fields: Sequence[str],
    ) -> None:
        """``read`` gives the texts of a record for ``fields``, or raises `UnreadableRecord`."""
        self._session = session
        self._format = target.format
        self._read = read
        self._types = tuple(shape.columns[name].definition for name in fields)

    def validate(self, suspects: Sequence[SuspectRecord]) -> tuple[list[SuspectRecord], list[DeadRecord]]:
        """Those that may land, and those that cannot, each in order."""
        errors = self._find_errors(suspects)
        kept = [suspect for n, suspect in enumerate(suspects) if n not in errors]
        return kept, [(suspects[n], errors[n]) for n in sorted(errors)]

    def run(self, write: FeedWrite) -> tuple[FeedWrite, list[DeadRecord]]:
        """The write without its suspicious records that cannot land; and these."""
        places: list[tuple[int, int]] = []
        suspects: list[SuspectRecord] = []
        for number, batch in enumerate(write.batches):
            records = batch.split()
            doubtful = _find_doubtful(self._format, batch, records)
            places += [(number, n) for n in doubtful]
            suspects += [SuspectRecord(write, batch, records[n]) for n in doubtful]
        errors = self._find_errors(suspects)
        gone: dict[int, set[int]] = {}
        for place in errors:
            number, n = places[place]
            gone.setdefault(number, set()).add(n)
        batches = (b.without(gone[n]) if n in gone else b for n, b in enumerate(write.batches))
        return replace(write, batches=tuple(batches)), [(suspects[n], errors[n]) for n in sorted(errors)]

    def _find_errors(self, suspects: Sequence[SuspectRecord]) -> dict[int, str]:
        """Why some of them cannot land, by index."""
        readable: dict[int, Fields] = {}
        errors: dict[int, str] = {}
        for n, suspect in enumerate(suspects):
            try:
                fields = self._read(*suspect)
                error = _nul_violation(fields)
            except UnreadableRecord as unreadable:
                error = str(unreadable)
            if error:
                errors[n] = error
            else:
                readable[n] = fields
        if self._session.server_version >= ASKS_INPUT_FUNCTIONS:
            for asked in parts(list(readable), ASKED_AT_ONCE):
                try:
                    with self._session.savepoint("feedq_ask"):
                        found = self._ask_input_functions([readable[n] for n in asked])
                except psycopg2.Error as error:
                    if self._session.scope(error) is ErrorScope.UNAVAILABLE or self._session.is_broken:
                        raise
                    # Not all that an input function refuses it refuses softly: too deep a nesting of JSON, for
                    # one. What is left to do is to try them.
                    continue
                errors |= {asked[n]: error for n, error in found.items()}
        return errors

    def _ask_input_functions(self, rows: Sequence[Fields]) -> dict[int, str]:
        errors: dict[int, str] = {}
        for column, type_name in enumerate(self._types):
            texts = [fields[column] for fields in rows]
            if type_name == "text" or all(text is None for text in texts):
                continue
            for row in self._session.query(INPUT_ERRORS, {"texts": texts, "type": type_name}):
                errors.setdefault(row[0] - 1, _input_error(*row[1:]))
        return errors


def _find_doubtful(record_format: RecordFormat, batch: Batch, records: Sequence[bytes]) -> list[int]:
    """Indices of records that may be refused, found without a step of Python for each of the others."""
    if record_format == "bytes" or not records:
        return []
    # Either way there is one byte between two records.
    text = batch.lines if batch.lines is not None else b"\n".join(records)
    is_json = record_format == "json"
    found = set(_find_no_json(records)) if is_json else set()
    places = [*_find_no_utf8(text), *_find_all(text, NUL_ESCAPED if is_json else NUL)]
    if places:
        ends = list(map(add, accumulate(map(len, records)), range(len(records))))
        found |= {bisect(ends, place) for place in places}
    return sorted(found)


def _find_no_json(records: Sequence[bytes]) -> Iterator[int]:
    left = iter(records)
    while True:
        try:
            deque(map(_parse, left), maxlen=0)
        except (msgspec.DecodeError, ValueError, RecursionError):
            # What it stopped at is the last that was taken.
            yield len(records) - length_hint(left) - 1
        else:
            return


def _find_no_utf8(text: bytes) -> Iterator[int]:
    """Where the text is no UTF-8: at least one place on each line that is none."""
    at = 0
    while 0 <= at < len(text) and not text.isascii():
        try:
            str(memoryview(text)[at:], "utf-8")
        except UnicodeDecodeError as error:
            yield at + error.start
            at = text.find(b"\n", at + error.start)
        else:
            return


def _find_all(text: bytes, wanted: bytes) -> Iterator[int]:
    # A search for one byte is so much faster that it pays to see first whether there is any.
    at = text.find(wanted) if wanted[0] in text else -1
    while at >= 0:
        yield at
        at = text.find(wanted, at + 1)


def _nul_violation(fields: Fields) -> str | None:
    for text in fields:
        if text is not None:
            encode(text)
            if "\0" in text:
                return NUL_ERROR
    return None


def _input_error(message: str, detail: Any, code: str) -> str:
    return f"{message}{f': {detail}' if detail else ''} ({code})"[:ERROR_TEXT_MAX]
