"""What the address of a page or of the API asks for: filters, order and page of the list of feeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import urlencode

from feedq.errors import InvalidInput
from feedq.model import Status
from feedq.store.feed_listing import OFFSET_MAX, PAGE_MAX, Query, Sort

SEARCH_MAX = 200
"""Characters; names are no longer than that."""

Word = TypeVar("Word", bound=StrEnum)
Arguments = Callable[[str], str | None]
"""The value of an argument of the address, or None."""


def parse_query(argument: Arguments, *, limit: int) -> Query:
    """Raises `InvalidInput`, naming the argument and what it may be."""
    sort = word(argument("sort"), Sort, name="sort") or Sort.NAME
    order = argument("order") or "asc"
    if order not in ("asc", "desc"):
        raise InvalidInput(f"order={order!r}: must be asc or desc")
    return Query(
        search=(argument("search") or "").strip()[:SEARCH_MAX],
        status=word(argument("status"), Status, name="status"),
        worker=argument("worker") or None,
        tenant=argument("tenant") or None,
        sort=sort,
        descending=order == "desc",
        limit=number(argument("limit"), name="limit", default=limit, least=1, most=PAGE_MAX),
        offset=number(argument("offset"), name="offset", default=0, least=0, most=OFFSET_MAX),
    )


def address(query: Query, *, limit: int, **changes: Any) -> str:
    """The arguments that ask for ``query`` with ``changes``; what is as usual is left out.

    Whatever else than the page changes begins at the first page.
    """
    wanted = replace(query, **{"offset": 0, **changes})
    usual = Query(limit=limit)
    parts = {
        "search": wanted.search,
        "status": wanted.status,
        "worker": wanted.worker,
        "tenant": wanted.tenant,
        "sort": None if wanted.sort is usual.sort else wanted.sort,
        "order": "desc" if wanted.descending else None,
        "limit": None if wanted.limit == usual.limit else wanted.limit,
        "offset": wanted.offset,
    }
    return "?" + urlencode({name: str(value) for name, value in parts.items() if value})


def word(text: str | None, kind: type[Word], *, name: str) -> Word | None:
    """The value of an argument that may be one of a few. Raises `InvalidInput`, naming them."""
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput(f"{name}={text!r}: must be one of {', '.join(kind)}") from None


def number(text: str | None, *, name: str, default: int, least: int, most: int) -> int:
    """The number of an argument. Raises `InvalidInput`, naming it."""
    if not text:
        return default
    # Digits only: int() also takes signs, spaces, underscores and the digits of other scripts.
    if text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    raise InvalidInput(f"{name}={text!r}: must be a number from {least} to {most}")
