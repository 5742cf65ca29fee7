"""Numbers, cursors, errors and session names: the small decisions of the sink."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.sinks.checkpoints import cursor_text
from feedq.sinks.postgresql_session import driver_url
from feedq.sinks.session import application_name, worker_of

cursors = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(cursor=cursors)
def test_a_cursor_comes_back_as_it_is_unless_it_is_no_text(cursor: Any) -> None:
    plain = json.dumps(cursor)
    if "\\u0000" not in plain and "\\ud" not in plain:
        text = cursor_text(cursor)
        assert (text is None) == (cursor is None)
        assert json.loads(text or "null") == cursor


@pytest.mark.parametrize("cursor", ["a\0b", {"k\0": 1}, ["\\\0"], "\ud800", float("nan"), float("inf")])
def test_a_cursor_that_postgresql_could_not_give_back_is_refused(cursor: Any) -> None:
    with pytest.raises(ValueError, match="cannot be kept"):
        cursor_text(cursor)


def test_a_session_names_its_worker_within_what_postgresql_keeps() -> None:
    worker = uuid4()
    for role in ("writer", "fencer"):
        name = application_name(role, worker)
        assert name == f"feedq-{role}/{worker}"
        assert len(name.encode()) <= 63
        assert worker_of(name) == worker


def test_a_driver_in_the_url_is_left_out_for_libpq() -> None:
    assert driver_url("postgresql+psycopg2://u:p+w@h/d?x=1") == "postgresql://u:p+w@h/d?x=1"
    assert driver_url("postgres://h/d") == "postgres://h/d"
    assert driver_url("host=h dbname=a+b") == "host=h dbname=a+b"
