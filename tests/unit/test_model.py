"""The values: keys, and batches held in two ways that must mean the same."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core import model
from feedq.core.model import Batch

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


OWN = [value for value in vars(model).values() if getattr(value, "__module__", "") == model.__name__]
VALUES = [value for value in OWN if isinstance(value, type) and dataclasses.is_dataclass(value)]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: v.__name__)
def test_values_cannot_be_changed_nor_grow(value: type) -> None:
    # One batch is made for every read of every feed, and frozen it would take three times as long.
    assert value.__dataclass_params__.frozen or value is Batch  # type: ignore[attr-defined]
    assert "__slots__" in vars(value)
