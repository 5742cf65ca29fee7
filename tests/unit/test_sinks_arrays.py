"""Arrays as text: PostgreSQL reads back what was put in."""

from __future__ import annotations

import psycopg2.extensions
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.sinks import statements as arrays

TEXTS = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))


def _elements(literal: str) -> list[str | None]:
    """What is in an array of one dimension, by psycopg2's own reader of the server's notation."""
    read = psycopg2.extensions.new_array_type((1,), "TEXT[]", psycopg2.extensions.UNICODE)
    found: list[str | None] = read(literal, None)
    return found


@given(TEXTS)
def test_texts_are_read_back_as_they_were(values: list[str | None]) -> None:
    assert _elements(arrays.texts(values)) == values


@given(st.lists(st.integers()))
def test_integers_are_read_back_as_they_were(values: list[int]) -> None:
    assert [int(text or "") for text in _elements(arrays.integers(values))] == values


def test_a_nul_is_refused_and_never_taken_for_the_end_of_a_text() -> None:
    with pytest.raises(ValueError, match="NUL"):
        arrays.texts(["a\0b"])
