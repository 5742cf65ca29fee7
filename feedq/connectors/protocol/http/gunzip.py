"""Content that a source sent compressed with gzip, unpacked in pieces of a bounded size.

A few kilobytes can unpack into gigabytes, so what arrives is kept as it is until its contents are asked for.
Several archives after one another are one content, as files that were appended to are.
"""

from __future__ import annotations

import zlib
from typing import Final

PIECE_BYTES_MAX: Final = 128 * 1024
"""What unpacks at once: also as many blank lines as that take no parser a tenth of a second."""
PACKED_BYTES_AT_ONCE: Final = 16 * 1024
"""It may be a thousand archives of nothing, and each of them copies what follows it."""
_GZIP: Final = zlib.MAX_WBITS | 16


class Gunzip:
    """One content being unpacked."""

    __slots__ = ("_at", "_has_more", "_inflater", "_is_amid", "_left", "_packed")

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(_GZIP)
        self._packed: bytes | bytearray = b""
        self._at = 0
        """How much of it was given to the inflater."""
        self._left = b""
        """Of that, what the inflater has given back."""
        self._has_more = False
        """Whether the inflater may hold contents of what it was given already."""
        self._is_amid = False

    @property
    def is_amid(self) -> bool:
        """Whether an archive has begun and has not ended."""
        return self._is_amid

    @property
    def is_drained(self) -> bool:
        """Whether all that was pushed is unpacked, and more has to be pushed."""
        return not self._has_more and not self._left and self._at == len(self._packed)

    def push(self, data: bytes | bytearray) -> None:
        """Take what arrived; everything before it must have been unpacked."""
        assert self.is_drained
        self._packed, self._at = data, 0

    def take(self) -> bytes:
        """A piece of the content, or nothing after a step that found none. Raises `zlib.error`."""
        if not self._left:
            self._left = bytes(self._packed[self._at : self._at + PACKED_BYTES_AT_ONCE])
            self._at += len(self._left)
        piece = b""
        while not piece and (self._left or self._has_more):
            if self._inflater.eof:
                self._inflater = zlib.decompressobj(_GZIP)
            piece = self._inflater.decompress(self._left, PIECE_BYTES_MAX)
            self._is_amid = not self._inflater.eof
            self._has_more = self._is_amid and len(piece) == PIECE_BYTES_MAX
            self._left = self._inflater.unconsumed_tail if self._is_amid else self._inflater.unused_data
        return piece
