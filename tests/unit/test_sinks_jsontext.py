"""JSON records: what counts as one, and where its values stand."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feedq.sinks.copytext import BeyondUs, UnreadableRecord, check
from tests.records import json_records, spoiled

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def parsed(text: bytes) -> Any:
    """By the standard library, numbers as they are written."""
    return json.loads(text.decode(), parse_int=Number, parse_float=Number, parse_constant=refuse)


class Number(str):
    """Told apart from a string of the same digits."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is Number and str.__eq__(self, other)

    __hash__ = str.__hash__


@given(record=json_records | spoiled(json_records) | spoiled(spoiled(json_records)) | st.binary(max_size=12))
@example(b"\xef\xbb\xbf{}")
@example(b'"\x7f\xc2\x80"')
@example(b"-")
def test_json_is_what_the_standard_library_takes(record: bytes) -> None:
    try:
        parsed(record)
    except ValueError:
        with pytest.raises(UnreadableRecord):
            check(record)
        return
    if not SURROGATE.search(record):
        check(record)


def test_a_whole_surrogate_pair_is_fine() -> None:
    check(b'["\\ud83d\\ude00", "\\uD83D\\uDE00"]')


def test_what_is_no_json_is_told_from_what_only_we_cannot_read() -> None:
    for record in (b'{"a": "\\ud800"}', b"[" * 5_000 + b"]" * 5_000):
        with pytest.raises(BeyondUs):
            check(record)
    with pytest.raises(UnreadableRecord) as caught:
        check(b'{"a": 01}')
    assert not isinstance(caught.value, BeyondUs)
