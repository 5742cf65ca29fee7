"""Content that a source sent compressed with gzip, unpacked in pieces of a bounded size.

A few kilobytes can unpack into gigabytes, so what arrives is kept as it is until its contents are asked for.
Several archives after one another are one content, as files that were appended to are.
"""

from __future__ import annotations

import zlib
from typing import Final

PIECE_BYTES_MAX: Final = 256 * 1024
_GZIP: Final = zlib.MAX_WBITS | 16


class Gunzip:
    """One content being unpacked."""

    __slots__ = ("_has_more", "_inflater", "_is_amid", "_packed")

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(_GZIP)
        self._packed = b""
        self._has_more = False
        """Whether the inflater may hold contents of what it was given already."""
        self._is_amid = False

    @property
    def is_amid(self) -> bool:
        """Whether an archive has begun and has not ended."""
        return self._is_amid

    def push(self, data: bytes | bytearray) -> None:
        """Take what arrived; `take` must have come to an end before."""
        self._packed += data

    def take(self) -> bytes:
        """A piece of the content; nothing when all that was pushed is unpacked. Raises `zlib.error`."""
        while self._packed or self._has_more:
            if self._inflater.eof:
                self._inflater = zlib.decompressobj(_GZIP)
            piece = self._inflater.decompress(self._packed, PIECE_BYTES_MAX)
            self._is_amid = not self._inflater.eof
            self._has_more = self._is_amid and len(piece) == PIECE_BYTES_MAX
            self._packed = (
                self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
            )
            if piece:
                return piece
        return b""
