"""What the address of a page or of the API asks for: filters, order and page of a list.

Schedules come by name, a page at a time, from the first one after a given name: however many there are, a page
costs what it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import urlencode

from feedq.control.store.feed_listing import OFFSET_MAX, PAGE_MAX, Query, Sort
from feedq.core.landed import Span
from feedq.core.model import Status
from feedq.core.schedule.model import RunState
from feedq.errors import InvalidInput

SEARCH_MAX = 200
"""Characters; names are no longer than that."""
SCHEDULES_MAX = 500
"""Schedules of one page: each costs a few lookups."""

Word = TypeVar("Word", bound=StrEnum)
Arguments = Callable[[str], str | None]
"""The value of an argument of the address, or None."""


def parse_query(argument: Arguments, *, limit: int) -> Query:
    """Reads what to list of feeds. Raises `InvalidInput`, naming the argument and what it may be."""
    sort = word(argument("sort"), Sort, name="sort") or Sort.NAME
    order = argument("order") or "asc"
    if order not in ("asc", "desc"):
        raise InvalidInput(f"order={order!r}: must be asc or desc")
    return Query(
        search=(argument("search") or "").strip()[:SEARCH_MAX],
        status=word(argument("status"), Status, name="status"),
        worker=argument("worker") or None,
        tenant=argument("tenant") or None,
        labels=parse_labels(argument("label")),
        connector=argument("connector") or None,
        match=argument("match") or None,
        failing=argument("failing") == "1",
        unmet=argument("unmet") == "1",
        dead_letters=argument("dead_letters") == "1",
        sort=sort,
        descending=order == "desc",
        limit=number(argument("limit"), name="limit", default=limit, least=1, most=PAGE_MAX),
        offset=number(argument("offset"), name="offset", default=0, least=0, most=OFFSET_MAX),
    )


def address(query: Query, *, usual_limit: int, **changes: Any) -> str:
    """Makes the arguments that ask for ``query`` with ``changes``; what is as usual is left out.

    Whatever else than the page changes begins at the first page.
    """
    wanted = replace(query, **{"offset": 0, **changes})
    usual = Query(limit=usual_limit)
    parts = {
        "search": wanted.search,
        "status": wanted.status,
        "worker": wanted.worker,
        "tenant": wanted.tenant,
        "label": ",".join(f"{name}={value}" for name, value in wanted.labels),
        "connector": wanted.connector,
        "match": wanted.match,
        "failing": "1" if wanted.failing else None,
        "unmet": "1" if wanted.unmet else None,
        "dead_letters": "1" if wanted.dead_letters else None,
        "sort": None if wanted.sort is usual.sort else wanted.sort,
        "order": "desc" if wanted.descending else None,
        "limit": None if wanted.limit == usual.limit else wanted.limit,
        "offset": wanted.offset,
    }
    return arguments_of(parts)


def parse_labels(text: str | None) -> tuple[tuple[str, str], ...]:
    """Reads ``name=value``, or several with commas between. Raises `InvalidInput`."""
    found = []
    for part in filter(None, (text or "").split(",")):
        name, is_given, value = part.partition("=")
        if not is_given or not name:
            raise InvalidInput(f"label={part!r}: must be a name and a value, as in label=team=till")
        found.append((name, value))
    return tuple(found)


def arguments_of(parts: Mapping[str, Any]) -> str:
    """Makes the end of an address that gives these arguments; those without a value are left out."""
    return "?" + urlencode({name: str(value) for name, value in parts.items() if value})


def word(text: str | None, kind: type[Word], *, name: str) -> Word | None:
    """Reads an argument that may be one of a few values. Raises `InvalidInput`, naming them."""
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput(f"{name}={text!r}: must be one of {', '.join(kind)}") from None


def parse_span(text: str | None) -> Span:
    """Reads how far back to look. Raises `InvalidInput`."""
    return word(text, Span, name="span") or Span.HOUR


def number(text: str | None, *, name: str, default: int, least: int, most: int) -> int:
    """Reads an argument that is a number. Raises `InvalidInput`, naming it."""
    if not text:
        return default
    # Digits only: int() also takes signs, spaces, underscores and the digits of other scripts.
    if text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    raise InvalidInput(f"{name}={text!r}: must be a number from {least} to {most}")


# -- schedules and runs ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduleQuery:
    """Asks for schedules whose name begins with ``prefix`` and comes after ``after``."""

    prefix: str = ""
    after: str = ""
    limit: int = SCHEDULES_MAX

    def address(self, *, usual_limit: int, after: str = "") -> str:
        """Makes the arguments that ask for this part of the list, from another name on."""
        parts = {
            "prefix": self.prefix,
            "after": after,
            "limit": None if self.limit == usual_limit else self.limit,
        }
        return arguments_of(parts)


def parse_schedules(argument: Arguments, *, limit: int) -> ScheduleQuery:
    """Reads what to list of schedules. Raises `InvalidInput`, naming the argument and what it may be."""
    return ScheduleQuery(
        prefix=(argument("prefix") or "").strip()[:SEARCH_MAX],
        after=argument("after") or "",
        limit=number(argument("limit"), name="limit", default=limit, least=1, most=SCHEDULES_MAX),
    )


def parse_states(text: str | None) -> tuple[RunState, ...]:
    found = [word(part, RunState, name="state") for part in (text or "").split(",")]
    return tuple(dict.fromkeys(state for state in found if state is not None))
