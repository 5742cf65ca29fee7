"""Fields that no column takes: what looking for them costs, and what cannot be heeded."""

from __future__ import annotations

import pytest

from feedq.errors import InvalidInput
from feedq.sinks.base import parse_sink
from feedq.sinks.field_watch import _decoder


def test_records_without_a_new_field_cost_one_call() -> None:
    decoder = _decoder(frozenset(("a", "b")))
    assert decoder is not None
    decoder.decode_lines(b'{"a": 1}\n{"b": {"c": 2}}\n{}\n')
    assert _decoder(frozenset(('q"',))) is None


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
