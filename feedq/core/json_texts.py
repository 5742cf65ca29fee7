"""JSON that somebody else wrote, read as it is or digit for digit."""

from __future__ import annotations

from decimal import Decimal
from math import isfinite
from typing import Any

import msgspec


def read_json(text: bytes | str) -> Any:
    """What a text that somebody else wrote says in JSON. Raises `ValueError`."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_exactly(text: bytes | str) -> Any:
    """What a text says in JSON, to be written again digit for digit: numbers that floats would change are
    `msgspec.Raw`. Raises `ValueError`."""
    try:
        return _EXACTLY.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def exact_number(text: str) -> float | msgspec.Raw:
    """A number as it is written, as a float if that is written the same."""
    number = float(text)
    return number if msgspec.json.encode(number) == text.encode() else msgspec.Raw(text.encode())


def same_number(text: str) -> float | msgspec.Raw:
    """A number as a float, unless it would become another one."""
    number = float(text)
    return (
        number if isfinite(number) and Decimal(repr(number)) == Decimal(text) else msgspec.Raw(text.encode())
    )


_EXACTLY = msgspec.json.Decoder(float_hook=exact_number)
