"""What a tap takes of the records that a feed lands, and how much of them it shows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from feedq.core.tap import RECORD_BYTES_MAX, RECORDS_PER_S, TapPart
from feedq.records.batch import Batch, Records
from feedq.secrets import Masker
from feedq.worker.taps import MASKED_BYTES, RecordTap

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = (1, 7)


def batch(*records: bytes, lines: bool = False) -> Batch:
    if lines:
        return Records(b"".join(record + b"\n" for record in records)).batch(cursor=1, received_at=NOW)
    return Records(records=tuple(records)).batch(cursor=1, received_at=NOW)


def taken(*batches: Batch, refused: int = 0, secret: str = "s3cret") -> TapPart:
    tap = RecordTap()
    tap.take(batches, refused=refused)
    part = tap.drain(KEY, Masker([secret]).mask)
    assert part is not None
    assert tap.drain(KEY, str) is None
    return part


@pytest.mark.parametrize("lines", [False, True])
def test_so_many_records_are_shown_and_the_rest_is_counted(lines: bool) -> None:
    many = [b"%d" % n for n in range(RECORDS_PER_S)]
    part = taken(batch(*many[:3], lines=lines), batch(*many, lines=lines), refused=2)
    assert [one.text for one in part.records] == [*"012", *map(str, range(RECORDS_PER_S - 3))]
    assert (part.feed_id, part.epoch, part.left_out, part.refused) == (*KEY, 3, 2)
    assert {(one.at, one.is_cut) for one in part.records} == {(NOW.isoformat(), False)}


@pytest.mark.parametrize("lines", [False, True])
def test_of_a_long_record_the_beginning_is_shown(lines: bool) -> None:
    for size in (RECORD_BYTES_MAX, RECORD_BYTES_MAX + 1, MASKED_BYTES, 10 * MASKED_BYTES):
        ((one,), left_out) = (part := taken(batch(b"x" * size, lines=lines))).records, part.left_out
        assert (one.text, one.size, left_out) == ("x" * min(size, RECORD_BYTES_MAX), size, 0)
        assert one.is_cut is (size > RECORD_BYTES_MAX)


def test_a_secret_is_masked_also_where_the_record_is_cut() -> None:
    for before in (0, RECORD_BYTES_MAX - 3, RECORD_BYTES_MAX - 1):
        (one,) = taken(batch(b"x" * before + b"s3cret" + b"y" * RECORD_BYTES_MAX)).records
        assert "s3" not in one.text
        assert one.text.startswith("x" * before + "*")


def test_what_could_not_be_sent_is_counted_with_the_next_part() -> None:
    tap = RecordTap()
    tap.take([batch(b"a", b"b")], refused=1)
    part = tap.drain(KEY, str)
    assert part is not None
    tap.miss(part)
    tap.take([batch(b"c")], refused=0)
    following = tap.drain(KEY, str)
    assert following is not None
    assert ([one.text for one in following.records], following.left_out, following.refused) == (["c"], 2, 1)
