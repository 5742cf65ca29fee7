"""What is expected of a feed: how long it may be silent or lag, how much must land or may be refused. Pure.

The same keys stand under ``expect`` of a feed, in ``FEEDQ_TENANT_EXPECT`` for a tenant and in ``FEEDQ_EXPECT`` for
all. The nearest that says a key counts, and ``none`` takes away what a farther one says. The database judges
(`feedq.control.store.expectations`), on behalf of the elected beat: a worker that stands still cannot keep quiet
about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

from feedq.core.values import NONE, Wrong, exact_duration, parse_duration

DURATION_MIN_S: Final = 1.0
DURATION_MAX_S: Final = 30 * 86_400.0
ROWS_MAX: Final = 10**12
AT_CHARS_MAX: Final = 500

Expectations = Mapping[str, Any]
"""By `Expectation`, each with its bound or None: seconds, a part of 1, ``{"per": seconds, "rows": n}``, or
``{"at": where in a record, "seconds": seconds}``."""


class Expectation(StrEnum):
    """The kinds of expectations of a feed."""

    MAX_SILENCE = "max_silence"
    """Longest time without a record."""
    MIN_ROWS = "min_rows"
    """Rows that land within a time, at least."""
    MAX_EVENT_LAG = "max_event_lag"
    """Longest time since the event that the newest record tells of."""
    MAX_REFUSED = "max_refused"
    """The largest part of the records that the sink may refuse."""


def read_expectations(given: Any) -> dict[str, Any]:
    """What a person wrote, checked. Raises `Wrong` with all that is wrong, by key."""
    if not isinstance(given, Mapping):
        raise Wrong([("", f"must be a mapping of {', '.join(Expectation)}")])
    wrong: list[tuple[str, str]] = []
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key not in _READERS:
            wrong.append((str(key), f"unknown key; known are {', '.join(Expectation)}"))
            continue
        try:
            found[key] = None if value in (None, NONE) else _READERS[key](value)
        except ValueError as error:
            wrong.append((key, str(error)))
    if wrong:
        raise Wrong(wrong)
    return found


def expected_of(
    tenant: str, own: Expectations, *, everything: Expectations, tenants: Mapping[str, Expectations]
) -> Expectations:
    """What is expected of a feed that expects ``own`` of itself, as the database puts it together."""
    return {**everything, **tenants.get(tenant, {}), **own}


def write_expectations(expected: Expectations) -> dict[str, Any]:
    """What `read_expectations` takes for the same."""
    return {key: NONE if bound is None else _WRITERS[key](bound) for key, bound in expected.items()}


def _seconds(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise ValueError("must be a duration such as 30s, 5m, 2h or 1d, or a number of seconds")
    seconds = parse_duration(given) if isinstance(given, str) else float(given)
    if not DURATION_MIN_S <= seconds <= DURATION_MAX_S:
        raise ValueError("must be from 1s to 30d")
    return seconds


def _rows(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping) or given.keys() != {"per", "rows"}:
        raise ValueError("must look like {per: 1h, rows: 1000}")
    rows = given["rows"]
    if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= ROWS_MAX:
        raise ValueError("rows must be a whole number from 1")
    return {"per": _seconds(given["per"]), "rows": rows}


def _lag(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping) or given.keys() != {"at", "seconds"}:
        raise ValueError("must look like {at: /ts, seconds: 60}")
    at = given["at"]
    if not isinstance(at, str) or not 1 <= len(at) <= AT_CHARS_MAX:
        raise ValueError("at must be a JSON pointer into the records, such as /ts, or a column of the sink")
    return {"at": at, "seconds": _seconds(given["seconds"])}


def _part(given: Any) -> float:
    text = given.removesuffix("%") if isinstance(given, str) else given
    try:
        part = float(text) / (1 if text is given else 100)
    except (TypeError, ValueError):
        part = -1.0
    if isinstance(given, bool) or not 0 <= part < 1:
        raise ValueError("must be a share of the records, such as 1% or 0.01")
    return part


def _number(seconds: float) -> float:
    return int(seconds) if seconds == int(seconds) else seconds


def _percent(part: float) -> str:
    return f"{100 * part:.10g}%"


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    Expectation.MAX_SILENCE: _seconds,
    Expectation.MIN_ROWS: _rows,
    Expectation.MAX_EVENT_LAG: _lag,
    Expectation.MAX_REFUSED: _part,
}
_WRITERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    Expectation.MAX_SILENCE: exact_duration,
    Expectation.MIN_ROWS: lambda bound: {"per": exact_duration(bound["per"]), "rows": bound["rows"]},
    Expectation.MAX_EVENT_LAG: lambda bound: {"at": bound["at"], "seconds": _number(bound["seconds"])},
    Expectation.MAX_REFUSED: _percent,
}


def unmet_said(kind: str, bound: Any, found: float, why: str | None = None) -> str:
    """What is not as expected, for people. ``why``: what the last record had in the place of a time."""
    match kind:
        case Expectation.MAX_SILENCE:
            return f"silent for more than {exact_duration(bound)}"
        case Expectation.MIN_ROWS:
            return f"{found:.0f} rows within {exact_duration(bound['per'])}, not {bound['rows']}"
        case Expectation.MAX_EVENT_LAG:
            said = f"newest event time ({bound['at']}) more than {exact_duration(bound['seconds'])} ago"
            return f"{said}: {why}" if why else said
        case Expectation.MAX_REFUSED:
            return f"{_percent(round(found, 4))} refused, more than {_percent(bound)}"
    return kind
