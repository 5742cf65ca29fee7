"""Texts of records as values of columns: exactly, or not at all.

What a column gets is read from the record as a text (see `feedq.sinks.sql.session`), and converted here by the
column's type. PostgreSQL's input functions refuse what does not fit; other databases round, cut off or guess,
so whatever they would bend is refused here, and becomes a dead letter.

A type that is not known here takes the text as it is, and the database decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final, NamedTuple

from sqlalchemy import types
from sqlalchemy.types import TypeEngine

from feedq.sinks.copytext import UnreadableRecord, encode

SHOWN_MAX: Final = 80
"""Characters of a value that an error quotes."""
INTEGER_BITS: Final = 64
DIGITS_MAX: Final = 1_000
"""More than any database keeps; without a bound, 1e999999999 would be written out here."""

TRUE: Final = frozenset({"true", "t", "yes", "y", "on", "1"})
FALSE: Final = frozenset({"false", "f", "no", "n", "off", "0"})

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")

Convert = Callable[[str], Any]
"""Raises `Unfit`."""


class Unfit(UnreadableRecord):
    """A value that its column cannot hold as it is."""


class Conversion(NamedTuple):
    """A conversion of a column: its texts are converted, and bound as ``bound``."""

    convert: Convert
    bound: TypeEngine[Any]


def conversion(column_type: TypeEngine[Any]) -> Conversion:
    """Chooses how texts become values of a column, in a database that keeps what its types promise."""
    match column_type:
        case types.Boolean():
            return Conversion(boolean, types.Boolean())
        case types.Integer():
            return Conversion(integer(INTEGER_BITS), types.BigInteger())
        case types.Float():
            return Conversion(binary_float, types.Float())
        case types.Numeric():
            return Conversion(decimal, types.Numeric())
        case types.DateTime():
            zoned = bool(column_type.timezone)
            return Conversion(aware if zoned else naive, types.DateTime(timezone=zoned))
        case types.Date():
            return Conversion(day, types.Date())
        case types.Time():
            return Conversion(time_of_day, types.Time())
        case types.Enum() if column_type.enums:
            return Conversion(one_of(column_type.enums), types.String())
        case types.String():
            return Conversion(text(column_type.length), types.String())
        case _ if is_binary(column_type):
            return Conversion(octets(getattr(column_type, "length", None)), types.LargeBinary())
        case _:
            return Conversion(text(None), types.NullType())


# -- numbers -----------------------------------------------------------------------------------------


def boolean(value: str) -> bool:
    word = value.strip().lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise _no("boolean", value)


def integer(bits: int, *, signed: bool = True) -> Convert:
    least, beyond = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)

    def convert(value: str) -> int:
        if not _INTEGER.fullmatch(value.strip()):
            raise _no("integer", value)
        number = _int(value)
        if not least <= number < beyond:
            raise Unfit(f"{_shown(value)} is out of range ({least} to {beyond - 1})")
        return number

    return convert


def flag(bits: int, *, signed: bool = True) -> Convert:
    """Converts to integers that stand in for booleans."""
    number = integer(bits, signed=signed)
    return lambda value: {"true": 1, "false": 0}.get(value) if value in ("true", "false") else number(value)


def binary_float(value: str) -> float:
    number = float(_number(value))
    if math.isinf(number):
        raise Unfit(f"{_shown(value)} is out of range")
    return number


def decimal(value: str) -> Decimal:
    number = Decimal(_number(value))
    if abs(number.adjusted()) > DIGITS_MAX or len(number.as_tuple().digits) > DIGITS_MAX:
        raise Unfit(f"{_shown(value)} is out of range")
    return number


def whole_digits(convert: Convert, precision: int | None, scale: int | None) -> Convert:
    """Numbers whose digits before the point fit; those behind the scale are rounded by the database."""
    if precision is None:
        return convert
    digits = precision - (scale or 0)

    def checked(value: str) -> Any:
        number = convert(value)
        if number and number.adjusted() >= digits:
            raise Unfit(f"{_shown(value)} is out of range ({digits} digits before the point)")
        return number

    return checked


def native_number(value: str) -> int | float:
    """What a database of 64-bit integers and doubles can hold, if it can hold this one exactly."""
    number = decimal(value)
    if number == number.to_integral_value() and -(2**63) <= number < 2**63:
        return int(number)
    nearest = float(number)
    if not math.isinf(nearest) and Decimal(repr(nearest)) == number:
        return nearest
    raise Unfit(f"{_shown(value)} has more digits than this database keeps; make the column text")


def is_number(value: str) -> bool:
    return _NUMBER.fullmatch(value.strip()) is not None


# -- times -------------------------------------------------------------------------------------------


def aware(value: str) -> datetime:
    """A moment; without a zone it is taken as UTC."""
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise _no("ISO 8601 date and time", value) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def naive(value: str) -> datetime:
    """A moment in UTC, for columns that know no zones."""
    try:
        return aware(value).astimezone(UTC).replace(tzinfo=None)
    except OverflowError:
        raise Unfit(f"{_shown(value)} is out of range") from None


def day(value: str) -> date:
    """A date, or the date of a moment as it is written."""
    try:
        return datetime.fromisoformat(value.strip()).date()
    except ValueError:
        raise _no("ISO 8601 date", value) from None


def time_of_day(value: str) -> time:
    try:
        return time.fromisoformat(value.strip())
    except ValueError:
        raise _no("ISO 8601 time", value) from None


# -- texts -------------------------------------------------------------------------------------------


def text(length: int | None) -> Convert:
    """Texts of at most ``length`` characters: some databases cut longer ones off."""

    def convert(value: str) -> str:
        if not value.isascii():
            encode(value)
        if length is not None and len(value) > length:
            raise Unfit(f"{_shown(value)} has {len(value)} characters, and the column takes {length}")
        return value

    return convert


def octets(length: int | None) -> Convert:
    r"""The bytes of a text, in UTF-8; after ``\x`` it spells them in hexadecimal, as PostgreSQL has it."""

    def convert(value: str) -> bytes:
        data = _unhex(value) if value.startswith("\\x") else encode(value)
        if length is not None and len(data) > length:
            raise Unfit(f"{_shown(value)} has {len(data)} bytes, and the column takes {length}")
        return data

    return convert


def one_of(words: list[str]) -> Convert:
    """Some databases take a number in a text for the position of a word."""
    known = frozenset(words)

    def convert(value: str) -> str:
        if value not in known:
            raise Unfit(f"{_shown(value)} is not one of {', '.join(words)}"[: 4 * SHOWN_MAX])
        return value

    return convert


def some_of(words: list[str]) -> Convert:
    """Words with commas between."""
    known = one_of(words)

    def convert(value: str) -> str:
        for word in filter(None, value.split(",")):
            known(word)
        return value

    return convert


def is_binary(column_type: TypeEngine[Any]) -> bool:
    try:
        return column_type.python_type is bytes
    except NotImplementedError:
        return False


def _unhex(value: str) -> bytes:
    try:
        return bytes.fromhex(value[2:])
    except ValueError:
        raise _no("hexadecimal", value) from None


def _number(value: str) -> str:
    stripped = value.strip()
    if not _NUMBER.fullmatch(stripped):
        raise _no("number", value)
    return stripped


def _int(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        # Thousands of digits, which Python refuses to read.
        raise Unfit(f"{_shown(value)} is out of range") from None


def _no(what: str, value: str) -> Unfit:
    return Unfit(f"{_shown(value)} is not a valid {what}")


def _shown(value: str) -> str:
    return repr(value if len(value) <= SHOWN_MAX else value[:SHOWN_MAX] + "…")
