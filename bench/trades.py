"""Made-up trades: lines of 170 bytes of JSON, and the same as columns for ``psql \\copy``.

``{"id": 17, "symbol": "BTC-EUR", "price": 27101.17, "quantity": 0.0170, "at": "2026-01-01T00:00:00.000017Z",
"memo": "x…"}``: five members of five types, and one that no column takes. A record has the same bytes whenever
it is made.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

LINE_BYTES: Final = 170
SYMBOLS: Final = ("BTC-EUR", "ETH-EUR", "XRP-USD", "SOL-USD", "ADA-CHF")
COLUMNS: Final = {
    "id": "bigint",
    "symbol": "text",
    "price": "numeric",
    "quantity": "double precision",
    "at": "timestamptz",
}
BAD_EVERY: Final = 1_000
BAD: Final = (
    b'{"id": %d, "symbol": "cut off',
    b'{"id": %d, "symbol": "a NUL: \\u0000"}',
    b'{"id": %d, "symbol": "no UTF-8: \xff"}',
    b'{"id": %d, "symbol": "BTC-EUR", "price": 1.}',
)
"""What jsonb refuses: three that any parser would, and one that most take."""


def columns(number: int) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """One record's values as text."""
    return (
        b"%d" % number,
        SYMBOLS[number % len(SYMBOLS)].encode(),
        b"%d.%02d" % (27_000 + number % 1_009, number % 100),
        b"%d.%04d" % (number % 7, number % 9_973),
        b"2026-01-01T%02d:%02d:%02d.%06dZ"
        % (number // 3_600 % 24, number // 60 % 60, number % 60, number % 1_000_000),
    )


def line(values: tuple[bytes, bytes, bytes, bytes, bytes]) -> bytes:
    """One record as JSON, with its line feed."""
    text = b'{"id": %b, "symbol": "%b", "price": %b, "quantity": %b, "at": "%b", "memo": "' % values
    return text + b"x" * (LINE_BYTES - len(text) - 3) + b'"}\n'


def write_files(lines: Path, columns_file: Path, *, count: int) -> None:
    """Records 1 to ``count``, as lines of JSON and as columns in COPY's text format."""
    with lines.open("wb") as as_json, columns_file.open("wb") as as_columns:
        for number in range(1, count + 1):
            values = columns(number)
            as_json.write(line(values))
            as_columns.write(b"\t".join(values) + b"\n")


def spoil(lines: Path, spoiled: Path, *, count: int) -> list[bytes]:
    """The same lines, but for one in `BAD_EVERY` at random, which is bad; returns the bad ones."""
    numbers = sorted(random.Random(count).sample(range(1, count), count // BAD_EVERY))
    bad = [BAD[n % len(BAD)] % number for n, number in enumerate(numbers)]
    with lines.open("rb") as good, spoiled.open("wb") as file:
        before = 0
        for number, instead in zip(numbers, bad, strict=True):
            file.write(good.read((number - 1 - before) * LINE_BYTES))
            file.write(instead + b"\n")
            good.seek(number * LINE_BYTES)
            before = number
        shutil.copyfileobj(good, file)
    return bad
