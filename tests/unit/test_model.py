"""The values: keys, and batches held in two ways that must mean the same."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core import model
from feedq.core.model import Assignment, Batch, Progress, Reason, Release, StopRequest

AT = datetime(2026, 1, 1, tzinfo=UTC)
records = st.binary(min_size=1).filter(lambda r: b"\n" not in r and b"\r" not in r)


@given(st.lists(records))
def test_the_fast_batch_holds_the_same_records_as_the_plain_one(many: list[bytes]) -> None:
    fast = Batch.of_lines(b"".join(r + b"\n" for r in many), cursor=7, received_at=AT)
    plain = Batch.of_records(many, cursor=7, received_at=AT)
    assert fast.split() == plain.split() == tuple(many)
    assert fast.count == plain.count == len(many)
    assert plain.size == sum(map(len, many))
    assert fast.size == plain.size + len(many), "its line ends count too: they take up memory"


@given(st.lists(st.binary()))
def test_a_plain_batch_keeps_any_bytes(many: list[bytes]) -> None:
    batch = Batch.of_records(iter(many), cursor=None, received_at=AT)
    assert batch.split() == tuple(many)
    assert (batch.count, batch.size) == (len(many), sum(map(len, many)))


def test_an_empty_batch_moves_the_cursor_and_holds_nothing() -> None:
    for batch in (
        Batch.of_lines(b"", cursor={"at": 1}, received_at=AT),
        Batch.of_records((), cursor={"at": 1}, received_at=AT),
    ):
        assert (batch.count, batch.size, batch.split()) == (0, 0, ())
        assert batch.cursor == {"at": 1}


def test_whatever_names_an_epoch_has_the_same_key() -> None:
    named: list[Assignment | StopRequest | Release | Progress] = [
        Assignment(3, 9, UUID(int=1), "node.a"),
        StopRequest(3, 9, Reason.PAUSED),
        Release(3, 9, Reason.RELEASED),
        Progress(3, 9, 0, 0, 0, None, None, False, False, 0, None),
    ]
    assert {one.key for one in named} == {(3, 9)}


OWN = [value for value in vars(model).values() if getattr(value, "__module__", "") == model.__name__]
VALUES = [value for value in OWN if isinstance(value, type) and dataclasses.is_dataclass(value)]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: v.__name__)
def test_values_cannot_be_changed_nor_grow(value: type) -> None:
    # One batch is made for every read of every feed, and frozen it would take three times as long.
    assert value.__dataclass_params__.frozen or value is Batch  # type: ignore[attr-defined]
    assert "__slots__" in vars(value)
