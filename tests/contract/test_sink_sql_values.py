"""Texts of records as values of columns: as they are, or refused with a reason."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import types
from sqlalchemy.dialects import mysql

from feedq.sinks.copytext import UnreadableRecord
from feedq.sinks.sql.column_values import Unfit, conversion
from feedq.sinks.sql.mysql import MySqlSession
from feedq.sinks.sql.session import SqlSession
from feedq.sinks.sql.sqlite import SqliteSession

LONG = "123456789012345678901234567890.123456789"
MOMENT = datetime(2026, 11, 20, 6, 30, tzinfo=UTC)


def convert(
    column_type: Any, text: str, *, session: type[SqlSession] | None = None, is_json: bool = False
) -> Any:
    found = conversion(column_type) if session is None else session.conversion(column_type, is_json=is_json)
    return found.convert(text)


@pytest.mark.parametrize(
    ("column_type", "text", "value"),
    [
        (types.Integer(), " -12 ", -12),
        (types.BigInteger(), str(2**63 - 1), 2**63 - 1),
        (types.Numeric(), "1.50", Decimal("1.50")),
        (types.Numeric(), LONG, Decimal(LONG)),
        (types.Float(), "0.1", 0.1),
        (types.Boolean(), "true", True),
        (types.DateTime(), "2026-11-20T06:30:00Z", datetime(2026, 11, 20, 6, 30)),  # noqa: DTZ001
        (types.DateTime(), "2026-11-20 08:30:00+02:00", datetime(2026, 11, 20, 6, 30)),  # noqa: DTZ001
        (types.DateTime(), "2026-11-20T06:30:00.123456789", datetime(2026, 11, 20, 6, 30, 0, 123456)),  # noqa: DTZ001
        (types.DateTime(timezone=True), "2026-11-20 06:30", MOMENT),
        (types.DateTime(timezone=True), "2026-11-20T08:30+02:00", MOMENT.astimezone(timezone(timedelta(hours=2)))),
        (types.Date(), "2026-11-20", date(2026, 11, 20)),
        (types.Date(), "2026-11-20T23:59:00-05:00", date(2026, 11, 20)),
        (types.Time(), "06:30:00.5", time(6, 30, 0, 500_000)),
        (types.String(3), "öäü", "öäü"),
        (types.Text(), "a\0b", "a\0b"),
        (types.LargeBinary(), "ö", "ö".encode()),
        (types.LargeBinary(), "\\x00ff", b"\0\xff"),
        (types.Enum("a", "b"), "b", "b"),
        (types.NullType(), "whatever", "whatever"),
    ],
)  # fmt: skip
def test_a_value_that_fits_is_converted(column_type: Any, text: str, value: Any) -> None:
    converted = convert(column_type, text)
    assert (type(converted), converted) == (type(value), value)


@pytest.mark.parametrize(
    ("column_type", "text", "why"),
    [
        (types.Integer(), "1.0", "no integer"),
        (types.Integer(), "true", "no integer"),
        (types.Integer(), "١", "no integer"),
        (types.BigInteger(), str(2**63), "out of range"),
        (types.Numeric(), "NaN", "no number"),
        (types.Numeric(), "1e999999999", "out of range"),
        (types.Float(), "1e999", "out of range"),
        (types.Boolean(), "2", "no boolean"),
        (types.DateTime(), "yesterday", "no ISO 8601 date and time"),
        (types.DateTime(), "0001-01-01T00:00:00+05:00", "out of range"),
        (types.Date(), "20.11.2026", "no ISO 8601 date"),
        (types.Time(), "25:00", "no ISO 8601 time"),
        (types.String(3), "four", "4 characters, and the column takes 3"),
        (types.Text(), "\ud800", "surrogates not allowed"),
        (types.LargeBinary(2), "abc", "3 bytes, and the column takes 2"),
        (types.LargeBinary(), "\\xzz", "no hexadecimal"),
        (types.Enum("a", "b"), "1", "none of a, b"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(column_type: Any, text: str, why: str) -> None:
    with pytest.raises(UnreadableRecord, match=why) as raised:
        convert(column_type, text)
    assert len(str(raised.value)) < 400


# -- SQLite ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1.0", 1), ("-0.5", -0.5), ("0.1", 0.1), (str(-(2**63)), -(2**63)), ("1e300", 1e300)],
)
def test_sqlite_gets_numbers_that_it_can_hold(text: str, value: float) -> None:
    assert convert(types.Numeric(), text, session=SqliteSession) == value


@pytest.mark.parametrize("text", [str(2**63), "0.12345678901234567890123", "1e400"])
def test_sqlite_is_not_given_numbers_that_it_would_round(text: str) -> None:
    with pytest.raises(Unfit, match=r"more digits than this database keeps|out of range"):
        convert(types.Numeric(), text, session=SqliteSession)
    with pytest.raises(Unfit):
        convert(types.JSON(), text, session=SqliteSession, is_json=True)


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_what_sqlite_gets_is_the_number_that_was_meant(number: Decimal) -> None:
    try:
        value = convert(types.Numeric(), str(number), session=SqliteSession)
    except Unfit:
        return
    assert Decimal(repr(value)) == number


# -- MariaDB and MySQL -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column_type", "text", "value"),
    [
        (mysql.TINYINT(display_width=1), "true", 1),
        (mysql.TINYINT(unsigned=True), "255", 255),
        (mysql.BIT(8), "255", 255),
        (mysql.BIT(1), "false", 0),
        (mysql.MEDIUMINT(), str(2**23 - 1), 2**23 - 1),
        (mysql.INTEGER(unsigned=True), str(2**32 - 1), 2**32 - 1),
        (mysql.BIGINT(unsigned=True), str(2**64 - 1), 2**64 - 1),
        (mysql.DECIMAL(5, 2), "999.999", Decimal("999.999")),
        (mysql.DECIMAL(5, 2), "0", Decimal(0)),
        (mysql.SET("a", "b"), "a,b", "a,b"),
        (mysql.SET("a", "b"), "", ""),
        (mysql.TIMESTAMP(), "2026-11-20T06:30:00Z", datetime(2026, 11, 20, 6, 30)),  # noqa: DTZ001
        (mysql.LONGTEXT(), "x", "x"),
    ],
)
def test_mysql_gets_what_its_types_take(column_type: Any, text: str, value: Any) -> None:
    assert convert(column_type, text, session=MySqlSession) == value


@pytest.mark.parametrize(
    ("column_type", "text"),
    [
        (mysql.TINYINT(), "128"),
        (mysql.TINYINT(unsigned=True), "-1"),
        (mysql.SMALLINT(), str(2**15)),
        (mysql.MEDIUMINT(), str(2**23)),
        (mysql.INTEGER(), str(2**31)),
        (mysql.INTEGER(), "true"),
        (mysql.BIT(8), "256"),
        (mysql.BIT(8), "A"),
        (mysql.DECIMAL(5, 2), "1000"),
        (mysql.ENUM("a", "b"), "1"),
        (mysql.SET("a", "b"), "3"),
        # Too many spaces at the end are cut off even in strict mode.
        (mysql.VARCHAR(3), "abc "),
    ],
)
def test_mysql_is_not_given_what_it_would_bend(column_type: Any, text: str) -> None:
    with pytest.raises(Unfit):
        convert(column_type, text, session=MySqlSession)
