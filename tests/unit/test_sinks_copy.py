"""COPY of the default target: the quick path gives the same bytes as the plain one, and both the right ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.model import Batch
from feedq.sinks import copyplan
from feedq.sinks.base import FeedWrite, Target
from feedq.sinks.copyplan import DefaultRows, encoded

AT = datetime(2026, 11, 20, 6, 30, 0, 123457, tzinfo=UTC)
TARGET = Target("t", "json")


def write_of(batch: Batch) -> FeedWrite:
    return FeedWrite(12, 'acme/"ö\t', 7, TARGET, (batch,))


def of_records(records: Sequence[bytes]) -> Batch:
    return Batch.of_records(records, cursor=None, received_at=AT)


def of_lines(records: Sequence[bytes]) -> Batch:
    return Batch.of_lines(b"".join(r + b"\n" for r in records), cursor=None, received_at=AT)


any_record = st.binary(max_size=40)
line = st.binary(min_size=1, max_size=40).filter(lambda r: not {10, 13} & set(r))


def decoded(copied: bytes) -> list[list[bytes | None]]:
    """Rows of a binary COPY, read back by its specification."""
    rows = []
    at = 0
    while at < len(copied):
        (count,) = struct.unpack_from(">h", copied, at)
        at += 2
        fields: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", copied, at)
            at += 4
            fields.append(None if length < 0 else copied[at : at + length])
            at += max(length, 0)
        rows.append(fields)
    return rows


@given(
    records=st.lists(any_record, max_size=20),
    payload_type=st.sampled_from(["jsonb", "json", "text", "bytea"]),
)
def test_a_default_row_holds_feed_epoch_time_and_the_records_own_bytes(
    records: list[bytes], payload_type: str
) -> None:
    batch = of_records(records)
    version = b"\x01" if payload_type == "jsonb" else b""
    copied = b"".join(encoded(DefaultRows(payload_type), [write_of(batch)]))
    micros = round((AT - datetime(2000, 1, 1, tzinfo=UTC)).total_seconds() * 10**6)
    assert decoded(copied) == [
        ['acme/"ö\t'.encode(), struct.pack(">q", 7), struct.pack(">q", micros), version + record]
        for record in records
    ]


@given(records=st.lists(line, max_size=30), chunk_bytes=st.sampled_from([1, 7, 64, 65536]))
def test_lines_land_as_the_same_rows_as_their_records(records: list[bytes], chunk_bytes: int) -> None:
    rows = DefaultRows("jsonb")
    lines = of_lines(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copyplan, "CHUNK_BYTES", chunk_bytes)
        quick = b"".join(encoded(rows, [write_of(lines)]))
    assert lines.split() == tuple(records)
    assert quick == b"".join(rows.record(write_of(lines), lines, record) for record in records)
