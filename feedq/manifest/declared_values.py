"""Values as people write them in a manifest or on the command line: durations, moments, words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from feedq.errors import InvalidInput
from feedq.wording import parse_duration

NONE = "none"
"""Says that there is no limit, where leaving a key out would mean a usual one."""

Word = TypeVar("Word", bound=StrEnum)
Value = TypeVar("Value")


def parse_zone(zone: str) -> ZoneInfo:
    """Raises `ValueError` with what is wrong."""
    try:
        return ZoneInfo(zone)
    except (ValueError, KeyError, OSError):
        raise ValueError(f"{zone!r} is no time zone such as Europe/Berlin or UTC") from None


def parse_moment(text: str, zone: str) -> datetime:
    """ISO 8601, such as ``2026-12-01T08:00`` in the zone, or with an offset of its own, as a moment in UTC.

    Raises `ValueError` with what is wrong; a time that the clocks of the zone leave out or show twice is.
    """
    try:
        said = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time; write it as 2026-12-01T08:00 or 2026-12-01T08:00:00Z"
        ) from None
    try:
        if said.tzinfo is not None:
            return said.astimezone(UTC)
        clock = parse_zone(zone)
        first, second = (said.replace(tzinfo=clock, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first.astimezone(clock).replace(tzinfo=None) != said:
            raise ValueError(f"{text!r} does not exist in {zone}: clocks are put forward over it")
        if first != second:
            raise ValueError(
                f"{text!r} exists twice in {zone}, because clocks are put back; say which with an offset, "
                f"{first.astimezone(clock).isoformat()} or {second.astimezone(clock).isoformat()}"
            )
    except OverflowError:
        raise ValueError(f"{text!r} is out of the range of times") from None
    return first


def moment(text: str, zone: str, *, option: str) -> datetime:
    """As `parse_moment`. Raises `InvalidInput` that names the option."""
    try:
        return parse_moment(text, zone)
    except ValueError as error:
        raise InvalidInput(f"{option}: {error}") from None


def duration(text: str, *, option: str) -> float:
    """As `parse_duration`. Raises `InvalidInput` that names the option."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidInput(f"{option}: {error}") from None


class Fields:
    """The values of one mapping by key. What is wrong with them is collected; meanwhile the default is given."""

    def __init__(
        self, values: Mapping[Any, Any], known: tuple[str, ...], *, below: tuple[Fields, str] | None = None
    ) -> None:
        """``below``: the fields that this mapping is a value of, and its key there."""
        self.values = values
        self._top_key = None if below is None else below[1]
        self._path = "" if below is None else f"{below[1]}."
        self.problems: list[tuple[str, str]] = [] if below is None else below[0].problems
        """``(key, what is wrong)``; the key is that of the outermost mapping."""
        for key in values:
            if key not in known:
                self._complain(str(key), f"unknown key {key!r}; known are {', '.join(known)}", named=False)

    def wrong(self, key: str, what: str) -> None:
        self._complain(key, what, named=True)

    def has(self, key: str) -> bool:
        """Whether it is there; null is like nothing."""
        return self.values.get(key) is not None

    def text(self, key: str, default: str, *, required: bool = False) -> str:
        if not self.has(key):
            if required:
                self.wrong(key, "is missing")
            return default
        value = self.values[key]
        if not isinstance(value, str):
            self.wrong(key, "must be a string; quote it")
            return default
        return value

    def word(self, key: str, default: Word) -> Word:
        """One of the values of an enumeration."""
        kind = type(default)
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or value not in list(kind):
            self.wrong(key, f"must be one of {', '.join(kind)}")
            return default
        return kind(value)

    def whole(self, key: str, default: Value) -> int | Value:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(key, "must be a whole number")
            return default
        return value

    def number(self, key: str, default: Value) -> float | Value:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(key, "must be a number")
            return default
        return self._as_float(key, value, default)

    def seconds(self, key: str, default: Value) -> float | Value:
        """A duration: text such as ``1m30s``, or a number of seconds."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            self.wrong(key, "must be a duration such as 30s, 5m, 2h or 1d, or a number of seconds")
            return default
        if not isinstance(value, str):
            if value < 0:
                self.wrong(key, f"{value} is negative; a duration must be positive")
            return self._as_float(key, value, default)
        try:
            return parse_duration(value)
        except ValueError as error:
            self.wrong(key, str(error))
            return default

    def unless_none(self, key: str) -> bool:
        """Whether the key does not say ``none``."""
        return self.values.get(key) != NONE

    def moment(self, key: str, zone: str) -> datetime | None:
        """None when it is not there, or wrong."""
        text = self.text(key, "")
        if not text:
            if self.values.get(key) == "":
                self.wrong(key, "must not be empty")
            return None
        try:
            return parse_moment(text, zone)
        except ValueError as error:
            self.wrong(key, str(error))
            return None

    def several(self, key: str) -> tuple[Fields, ...]:
        """Each item of a list, or the one value, as fields with the same key: to be read as if it stood alone."""
        value = self.values.get(key)
        if isinstance(value, list | tuple) and not value:
            self.wrong(key, "must not be empty")
        items = value if isinstance(value, list | tuple) else [] if value is None else [value]
        return tuple(self._external_pool({key: item}) for item in items)

    def _external_pool(self, values: Mapping[str, Any]) -> Fields:
        """Fields whose problems are this one's."""
        found = Fields(values, tuple(values))
        found._top_key, found._path, found.problems = self._top_key, self._path, self.problems
        return found

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(key, "must be true or false")
            return default
        return value

    def sequence(self, key: str) -> tuple[Any, ...]:
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            self.wrong(key, "must be a list")
            return ()
        return tuple(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(key, "must be a mapping")
            return {}
        return value

    def below(self, key: str, known: tuple[str, ...], *, shorthand: str) -> Fields:
        """The fields of a mapping in here; any other value is what ``shorthand`` says alone."""
        value = self.values.get(key)
        inner = value if isinstance(value, Mapping) else {} if value is None else {shorthand: value}
        return Fields(inner, known, below=(self, key))

    def _as_float(self, key: str, value: float, default: Value) -> float | Value:
        try:
            return float(value)
        except OverflowError:
            self.wrong(key, "is too large")
            return default

    def _complain(self, key: str, what: str, *, named: bool) -> None:
        path = f"{self._path}{key}" if named else self._path.removesuffix(".")
        self.problems.append((self._top_key or key, f"{path}: {what}" if path else what))
