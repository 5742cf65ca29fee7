"""Times as people write them: zones, moments, and how long ago or from now.

A moment is read in a zone, and is UTC from then on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, PlainSerializer, PlainValidator, ValidationInfo, WithJsonSchema

from feedq.core.values import NAME_MAX, NONE, Text, parse_duration

DEFAULT_ZONE = "UTC"
YEARS = (datetime(1970, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC))
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}", re.ASCII)
_OWN_ZONES = {"localtime", "posixrules", "Factory"}
"""Names that mean another zone on each machine."""


def check_zone(zone: str) -> str:
    """Raises `ValueError` with what is wrong, and the names that were meant perhaps."""
    if _ZONE.fullmatch(zone) and zone not in _OWN_ZONES:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            pass
        else:
            return zone
    near = get_close_matches(zone[:NAME_MAX].lower(), _zones(), n=3)
    hint = f"; did you mean {' or '.join(_zones()[name] for name in near)}?" if near else ""
    raise ValueError(f"{zone[:NAME_MAX]!r} is not a time zone such as Europe/Berlin or UTC{hint}")


@lru_cache(maxsize=1)
def _zones() -> Mapping[str, str]:
    """Maps the names of all zones in small letters to themselves."""
    return {name.lower(): name for name in sorted(available_timezones() - _OWN_ZONES)}


def parse_moment(text: str, zone: str) -> datetime:
    """ISO 8601, such as ``2026-12-01T08:00`` in the zone, or with an offset of its own, as a moment in UTC.

    Raises `ValueError` with what is wrong; a time that the clocks of the zone leave out or show twice is.
    """
    try:
        said = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; write it as 2026-12-01T08:00 or 2026-12-01T08:00:00Z"
        ) from None
    try:
        if said.tzinfo is not None:
            return said.astimezone(UTC)
        clock = ZoneInfo(check_zone(zone))
        first, second = (said.replace(tzinfo=clock, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first.astimezone(clock).replace(tzinfo=None) != said:
            raise ValueError(f"{text!r} does not exist in {zone}: clocks skip it when they go forward")
        if first != second:
            raise ValueError(
                f"{text!r} exists twice in {zone}, because clocks go back; choose one with an offset, "
                f"{first.astimezone(clock).isoformat()} or {second.astimezone(clock).isoformat()}"
            )
    except OverflowError:
        raise ValueError(f"{text!r} is out of the range of times") from None
    return first


def parse_moment_near(text: str, zone: str, *, now: datetime, sign: int) -> datetime:
    """A time as `parse_moment` reads it, or how long from ``now`` that is (``sign`` 1) or was (-1): ``90m``.

    Raises `ValueError` with what is wrong.
    """
    with suppress(ValueError, OverflowError):
        return now + sign * timedelta(seconds=parse_duration(text))
    return parse_moment(text, zone)


def instant(at: datetime) -> str:
    """ISO 8601 in UTC with a Z, to the second or, where there are any, microseconds: ``2026-11-22T10:00:00Z``.

    The key of a tick is written so.
    """
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _read_moment(given: Any, info: ValidationInfo) -> datetime:
    """Reads a time in the zone that stands before it."""
    if not isinstance(given, str):
        raise ValueError("must be a string; quote it")
    if not given:
        raise ValueError("must not be empty")
    at = parse_moment(given, info.data.get("zone", DEFAULT_ZONE))
    if not YEARS[0] <= at < YEARS[1]:
        raise ValueError("must lie in the years 1970 to 2999")
    return at


Zone = Annotated[Text, AfterValidator(check_zone)]
_MOMENT_SCHEMA = WithJsonSchema({"type": "string"})
Moment = Annotated[datetime, PlainValidator(_read_moment), PlainSerializer(instant), _MOMENT_SCHEMA]
"""A time, in the ``zone`` that is declared beside it."""
Bound = Annotated[
    datetime | None,
    PlainValidator(lambda given, info: None if given == NONE else _read_moment(given, info)),
    PlainSerializer(lambda at: NONE if at is None else instant(at)),
    _MOMENT_SCHEMA,
]
"""Such a time, or ``none``."""
