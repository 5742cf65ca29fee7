"""Arguments of addresses and bodies: names, times, places in lists; and none that an endpoint does not know.

Names are one part of the path each, percent-encoded, slashes too (``acme%2Forders``). A page of a list goes on
behind what the one before has shown, whatever was added or removed since; an offset would leave out or repeat what
has moved. Where it begins is text that only this module reads.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import unquote

import orjson
from fastapi import Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import AfterValidator, AwareDatetime
from starlette.convertors import Convertor, register_url_convertor

from feedq.core.values import NAME_MAX, YEARS, did_you_mean, shown_path
from feedq.errors import InvalidInput
from feedq.telemetry.event_names import EventKind

LIMIT_MAX = 500
"""One more is asked for, and the store has 1,000 at most."""
CURSOR_CHARS_MAX = 2_000


class NameConvertor(Convertor[str]):
    """Reads a name out of a path that was left as it was sent."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value, errors="replace")

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", NameConvertor())

NamePath = Annotated[
    str, Path(min_length=1, max_length=NAME_MAX, description="The name, percent-encoded: `acme%2Forders`.")
]
Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="How many of them at most.")]
Cursor = Annotated[
    str | None,
    Query(max_length=CURSOR_CHARS_MAX, description="`next` of the page before; left out, the first."),
]
Kinds = Annotated[
    list[EventKind], Query(max_length=len(EventKind), description="Events of these kinds alone.")
]


def _in_utc(at: datetime) -> datetime:
    """Raises ValueError. PostgreSQL knows no offset of more than fifteen hours: none goes further than here."""
    try:
        found = at.astimezone(UTC)
    except OverflowError:
        found = None
    if found is None or not YEARS[0] <= found < YEARS[1]:
        raise ValueError("must lie in the years 1970 to 2999")
    return found


AskedMoment = Annotated[AwareDatetime, AfterValidator(_in_utc)]


def cursor_of(*place: str | int) -> str:
    """The cursor of the page that begins behind this place."""
    return base64.urlsafe_b64encode(orjson.dumps(place)).decode().rstrip("=")


def place_of(cursor: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """The place that a cursor stands for, None for the first page. Raises `InvalidInput`."""
    if cursor is None:
        return None
    try:
        found = orjson.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except (ValueError, binascii.Error):
        found = None
    if not isinstance(found, list) or [type(one) for one in found] != list(kinds):
        raise InvalidInput("cursor: is none of this list; give `next` of the page before, or leave it out")
    return tuple(found)


def require_known_arguments(request: Request) -> None:
    """Raises `InvalidInput`, naming the one that is not known and what may have been meant."""
    route = request.scope["route"]
    if not isinstance(route, APIRoute):
        return
    known = sorted(_arguments(route.dependant))
    for name in request.query_params:
        if name not in known:
            hint = did_you_mean(name, known) or f"; known are: {', '.join(known) or 'none'}"
            raise InvalidInput(f"unknown argument {shown_path(name)!r}{hint}")


def _arguments(dependant: Dependant) -> set[str]:
    found = {field.alias for field in dependant.query_params}
    return found.union(*map(_arguments, dependant.dependencies))
