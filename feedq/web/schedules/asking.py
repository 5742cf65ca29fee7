"""What an address asks for: a part of the list of schedules, or of the runs.

Schedules come by name, a page at a time, from the first one after a given name: however many there are, a page
costs what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from feedq.errors import InvalidInput
from feedq.schedule.model import RunState
from feedq.store.feed_listing import PAGE_MAX
from feedq.web.asking import SEARCH_MAX, Arguments, number, word

SCHEDULES_MAX = 500
"""Schedules of one page: each costs a few lookups."""
RUN_ID_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ScheduleQuery:
    """Schedules whose name begins with ``prefix`` and comes after ``after``."""

    prefix: str = ""
    after: str = ""
    limit: int = SCHEDULES_MAX

    def address(self, *, usual_limit: int, after: str = "") -> str:
        """The arguments that ask for this part of the list, from another name on."""
        parts = {
            "prefix": self.prefix,
            "after": after,
            "limit": None if self.limit == usual_limit else self.limit,
        }
        return "?" + urlencode({name: str(value) for name, value in parts.items() if value})


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Runs of a schedule, or of all; of some states, or of any."""

    schedule: str | None = None
    states: tuple[RunState, ...] = ()
    limit: int = PAGE_MAX


def parse_schedules(argument: Arguments, *, limit: int) -> ScheduleQuery:
    """Raises `InvalidInput`, naming the argument and what it may be."""
    return ScheduleQuery(
        prefix=(argument("prefix") or "").strip()[:SEARCH_MAX],
        after=argument("after") or "",
        limit=number(argument("limit"), name="limit", default=limit, least=1, most=SCHEDULES_MAX),
    )


def parse_runs(argument: Arguments, *, limit: int) -> RunQuery:
    """Raises `InvalidInput` as `parse_schedules`. Several states are separated by commas."""
    return RunQuery(
        schedule=argument("schedule") or None,
        states=parse_states(argument("state")),
        limit=number(argument("limit"), name="limit", default=limit, least=1, most=PAGE_MAX),
    )


def parse_states(text: str | None) -> tuple[RunState, ...]:
    found = [word(part, RunState, name="state") for part in (text or "").split(",")]
    return tuple(dict.fromkeys(state for state in found if state is not None))


def parse_run_id(text: str) -> int:
    return number(text, name="run", default=0, least=1, most=RUN_ID_MAX)


def parse_moment(text: str, *, name: str) -> datetime:
    """Raises `InvalidInput`: a time without its zone could mean any of twenty-four."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidInput(f"{name}={text!r}: must be a time with its zone, as in 2026-11-22T10:00:00Z")
    return moment


def page_of(found: Sequence[str], query: ScheduleQuery) -> tuple[int, str | None]:
    """How many of the names found to show, and after which one the next page begins, if there is one.

    One more than the page holds was asked for, so that nothing has to be counted.
    """
    if len(found) <= query.limit:
        return len(found), None
    return query.limit, found[query.limit - 1]
