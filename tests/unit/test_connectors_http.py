"""Parts of the http connector: its options, unpacking, and what it makes of a poll."""

from __future__ import annotations

import gzip
import json
import zlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.connectors.http_client import Gunzip, named
from feedq.connectors.http_polling import (
    Cut,
    PollAnswer,
    PollCursor,
    advance,
    list_at,
    next_tick,
)
from feedq.connectors.wire.remote import RETRY_AFTER_S_MAX, retry_after_s
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured
from feedq.records.framing import Refusal
from feedq.records.turns import PIECE_BYTES, at_once

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
        answer = PollAnswer(records[:place], at=7, refusal=FeedMisconfigured("too large"))
        page = data.draw(st.sampled_from(["", "/?page=2"]))
        step = at_once(advance(position, answer, page=page, follows_cursor=True))
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
    assert (None if elements is None else list(elements[0])) == found


def elements_at(document: bytes, pointer: str, *, window_bytes: int = 2**18, **limits: int) -> Cut | None:
    limits = {"records_max": 10**6, "record_bytes_max": 2**20} | limits
    return at_once(list_at(document, pointer, window_bytes=window_bytes, **limits))


@pytest.mark.parametrize("window_bytes", [1, 8, 2**18])
def test_what_is_over_a_limit_of_a_list_is_told_after_what_is_before_it(window_bytes: int) -> None:
    document = b'[1, {"a": "' + b"x" * 100 + b'"}, 3]'
    found = elements_at(document, "", window_bytes=window_bytes, record_bytes_max=50)
    assert found == ([b"1"], Refusal.OVERSIZE)
    found = elements_at(document, "", window_bytes=window_bytes, records_max=2)
    assert found is not None
    assert len(found[0]) > 2
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
    assert len(cut[0]) == len(elements)
    for element, original in zip(cut[0], elements, strict=True):
        assert element in text.encode("utf-8", "replace")
        if ascii_only:
            assert json.loads(element) == original


NOW = datetime(2026, 1, 1, tzinfo=UTC)


# -- headers of answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        (" 17 ", 17.0),
        ("999999999", RETRY_AFTER_S_MAX),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Wed, 31 Dec 2025 23:00:00 GMT", 0.0),
        ("Thu, 01 Jan 2026 00:00:30 -0000", 30.0),
        ("Fri, 01 Jan 2027 00:00:00 GMT", RETRY_AFTER_S_MAX),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, seconds: float | None) -> None:
    assert retry_after_s(text, now=NOW) == seconds


def test_only_a_word_of_a_header_is_shown() -> None:
    assert named("text/html") == "'text/html'"
    assert named("s3cret of ours") == "that it names"
    assert named("x" * 100) == "that it names"


def unpacked(packed: bytes, step: int) -> tuple[bytes, Gunzip]:
    gunzip, content = Gunzip(), b""
    for start in range(0, len(packed), step):
        gunzip.push(packed[start : start + step])
        while not gunzip.is_drained:
            piece = gunzip.take()
            assert len(piece) <= PIECE_BYTES
            content += piece
    return content, gunzip


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3), st.integers(1, 50))
def test_archives_after_one_another_are_one_content(contents: list[bytes], step: int) -> None:
    content, gunzip = unpacked(b"".join(map(gzip.compress, contents)), step)
    assert content == b"".join(contents)
    assert not gunzip.is_amid


def test_nothing_is_held_back_that_could_be_unpacked() -> None:
    for size in range(PIECE_BYTES, PIECE_BYTES + 260, 13):
        packed = gzip.compress((b"abc" * size)[:size])
        for cut in range(1, 12):
            # All at once, as the library does it without a bound.
            expected = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed[:-cut])
            assert unpacked(packed[:-cut], 10**9)[0] == expected


@given(st.integers(1, 60))
def test_what_breaks_off_is_known_to(cut: int) -> None:
    packed = gzip.compress(b"some content that has a certain length, though not a great one")
    _, gunzip = unpacked(packed[:-cut] or packed[:1], 7)
    assert gunzip.is_amid


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_zeros_behind_an_archive_are_passed_over(step: int) -> None:
    content, gunzip = unpacked(gzip.compress(b"a") + bytes(600) + gzip.compress(b"b") + b"\0", step)
    assert (content, gunzip.is_amid, gunzip.is_drained) == (b"ab", False, True)


def test_what_is_no_gzip_is_told() -> None:
    with pytest.raises(zlib.error):
        unpacked(b"no gzip at all", 100)
    with pytest.raises(zlib.error):
        unpacked(gzip.compress(b"x") + b"and then something else", 100)
