"""Content packed with gzip: whole again however it was cut, and never more than a piece at once."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.connectors.protocol.http_client import PIECE_BYTES_MAX, Gunzip


def unpacked(packed: bytes, step: int) -> tuple[bytes, Gunzip]:
    gunzip, content = Gunzip(), b""
    for start in range(0, len(packed), step):
        gunzip.push(packed[start : start + step])
        while not gunzip.is_drained:
            piece = gunzip.take()
            assert len(piece) <= PIECE_BYTES_MAX
            content += piece
    return content, gunzip


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3), st.integers(1, 50))
def test_archives_after_one_another_are_one_content(contents: list[bytes], step: int) -> None:
    content, gunzip = unpacked(b"".join(map(gzip.compress, contents)), step)
    assert content == b"".join(contents)
    assert not gunzip.is_amid


def test_nothing_is_held_back_that_could_be_unpacked() -> None:
    for size in range(PIECE_BYTES_MAX, PIECE_BYTES_MAX + 260, 13):
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


def test_what_is_no_gzip_is_told() -> None:
    with pytest.raises(zlib.error):
        unpacked(b"no gzip at all", 100)
    with pytest.raises(zlib.error):
        unpacked(gzip.compress(b"x") + b"and then something else", 100)
