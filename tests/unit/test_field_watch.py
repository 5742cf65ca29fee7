"""Fields that no column takes, found in lines and in records alike."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.model import Batch
from feedq.errors import InvalidInput
from feedq.sinks.base import parse_sink
from feedq.sinks.field_watch import FIELDS_MAX, FieldWatch, _decoder

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = st.sampled_from(["a", "b", 'q"', "b\\", "ü", ""])
DOCUMENTS = st.one_of(
    st.dictionaries(NAMES, st.one_of(st.none(), st.integers(0, 9), st.text(), st.just({"c": [1]}))),
    st.integers(0, 9),
    st.just([{"a": 1}]),
)


def batches(records: list[bytes]) -> list[Batch]:
    lined = Batch.of_lines(b"".join(r + b"\n" for r in records), cursor=1, received_at=NOW)
    return [lined, Batch.of_records(records, cursor=1, received_at=NOW)]


@given(documents=st.lists(DOCUMENTS, min_size=1, max_size=6), taken=st.frozensets(NAMES))
def test_a_new_field_is_found_wherever_it_is(documents: list[object], taken: frozenset[str]) -> None:
    records = [msgspec.json.encode(document) for document in documents] + [b"{no json", b"\xff"]
    expected = {
        place: set(document) - taken
        for place, document in enumerate(documents)
        if isinstance(document, dict) and set(document) - taken
    }
    for batch in batches(records):
        assert FieldWatch().look([batch], taken) is bool(expected)
        assert batch.without(expected).split() == tuple(
            record for place, record in enumerate(records) if place not in expected
        )


def test_records_without_a_new_field_cost_one_call() -> None:
    decoder = _decoder(frozenset(("a", "b")))
    assert decoder is not None
    decoder.decode_lines(b'{"a": 1}\n{"b": {"c": 2}}\n{}\n')
    assert _decoder(frozenset(('q"',))) is None


def test_names_without_end_are_told_up_to_a_bound() -> None:
    watch = FieldWatch()
    for n in range(3):
        record = msgspec.json.encode({f"f{n}_{m}": m for m in range(FIELDS_MAX)})
        watch.look(batches([record])[:1], frozenset())
    assert len(watch.news()) == FIELDS_MAX


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ({"table": "t", "drift": "event"}, "drift needs columns, or flatten"),
        ({"table": "t", "columns": {"a": "/a"}, "drift": "refuse"}, "drift"),
    ],
)
def test_a_drift_that_could_not_be_heeded_is_refused(sink: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parse_sink(sink)
