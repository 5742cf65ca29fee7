"""Where a feed that polls stands, and where answers take it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.connectors.protocol.http_polling import (
    Elements,
    PollAnswer,
    PollCursor,
    TooMany,
    advance,
    list_at,
    next_tick,
    within,
)
from feedq.core.model import JSON
from feedq.records.framing import at_once

RECORDS = st.lists(st.binary(min_size=1, max_size=4), max_size=6)
CURSORS = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2))


# -- positions -----------------------------------------------------------------------------------------


@given(
    st.builds(
        PollCursor,
        at=CURSORS,
        etag=st.text(max_size=5),
        modified=st.text(max_size=5),
        seen=st.integers(0, 9),
        digest=st.text(max_size=5),
    )
)
def test_a_position_comes_back_from_its_cursor(position: PollCursor) -> None:
    assert PollCursor.of(json.loads(json.dumps(position.as_cursor()))) == position


@pytest.mark.parametrize("cursor", [None, 7, "x", [1], {"seq": 1}, {"at": 1, "more": 2}])
def test_any_other_cursor_is_the_sources_own(cursor: JSON) -> None:
    assert PollCursor.of(cursor) == PollCursor(at=cursor)


# -- steps ---------------------------------------------------------------------------------------------


@given(RECORDS, st.data())
def test_what_lies_before_a_record_that_cannot_land_is_skipped_when_it_can(
    records: list[bytes], data: st.DataObject
) -> None:
    position = PollCursor(at=7, etag='"v1"')
    places = [data.draw(st.integers(0, len(records))), len(records)]
    landed: list[bytes] = []
    for place in sorted(places):
        step = at_once(within(position, records[:place]))
        landed += step.new
        position = step.after
        assert (position.at, position.etag) == (7, "")
    assert landed == records


def test_tags_that_are_long_or_odd_are_not_kept() -> None:
    for tag in ('"' + "x" * 600 + '"', '"ü"'):
        assert (
            at_once(
                advance(PollCursor(), PollAnswer([], at=None, etag=tag), page="", follows_cursor=True)
            ).after
            == PollCursor()
        )


# -- ticks ---------------------------------------------------------------------------------------------


@given(st.floats(0, 1e9), st.floats(0, 1e7), st.floats(0.1, 86_400))
def test_the_next_tick_is_ahead_and_no_interval_away(began: float, passed: float, interval_s: float) -> None:
    now = began + passed
    wait_s = next_tick(began, now, interval_s=interval_s) - now
    assert 0 < wait_s <= interval_s * 1.001


# -- lists ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "pointer", "found"),
    [
        (b"[1, 2]", "", [b"1", b"2"]),
        (b'{"a": {"b/c": [[1, 2], []]}}', "/a/b~1c/0", [b"1", b"2"]),
        (b'{"a": []}', "/a", []),
        (b'{"a": null }', "/a", []),
        (b'{"a": 1}', "/a", None),
        (b'{"a": 1}', "/b", None),
        (b'{"a": 1}', "/a/b", None),
        (b"[[1]]", "/1", None),
        (b"[[1]]", "/00", None),
        (b"1", "", None),
    ],
)
def test_lists_are_found_where_the_pointer_says(
    document: bytes, pointer: str, found: list[bytes] | None
) -> None:
    elements = elements_at(document, pointer)
    assert (None if elements is None else list(elements.texts)) == found


def elements_at(
    document: bytes, pointer: str, *, window_bytes: int = 2**18, **limits: int
) -> Elements | None:
    limits = {"records_max": 10**6, "record_bytes_max": 2**20} | limits
    return at_once(list_at(document, pointer, window_bytes=window_bytes, **limits))


@pytest.mark.parametrize("window_bytes", [1, 8, 2**18])
def test_what_is_over_a_limit_of_a_list_is_told_after_what_is_before_it(window_bytes: int) -> None:
    document = b'[1, {"a": "' + b"x" * 100 + b'"}, 3]'
    found = elements_at(document, "", window_bytes=window_bytes, record_bytes_max=50)
    assert found is not None
    assert found.oversize
    assert list(found.texts) == [b"1"]
    with pytest.raises(TooMany):
        elements_at(document, "", window_bytes=window_bytes, records_max=2)
    assert elements_at(document, "", window_bytes=window_bytes, records_max=3) is not None


JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(JSONS, max_size=9), st.sampled_from([None, 1]), st.booleans(), st.integers(1, 64))
def test_the_elements_of_a_list_are_what_they_were(
    elements: list[JSON], indent: int | None, ascii_only: bool, window_bytes: int
) -> None:
    text = json.dumps({"x": [0], "data": {"items": elements}}, indent=indent, ensure_ascii=ascii_only)
    cut = elements_at(text.encode("utf-8", "replace"), "/data/items", window_bytes=window_bytes)
    assert cut is not None
    assert len(cut.texts) == len(elements)
    for element, original in zip(cut.texts, elements, strict=True):
        assert element in text.encode("utf-8", "replace")
        if ascii_only:
            assert json.loads(element) == original
