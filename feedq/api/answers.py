"""How an endpoint answers: a document as JSON, and the models that the OpenAPI document says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import Response
from pydantic import BaseModel

from feedq.api.arguments import cursor_of
from feedq.api.problems import MEDIA_TYPE
from feedq.wording import as_json

T = TypeVar("T")

PROBLEM = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "What was asked is wrong, or cannot be done as things stand.", **PROBLEM},
    "5XX": {"description": "A server that feedq needs does not answer.", **PROBLEM},
}


def returns(model: type[BaseModel], *, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """The answers of an endpoint, for its ``responses``."""
    return {status: {"model": model, "description": (model.__doc__ or "").split("\n")[0]}, **ERRORS}


def answer(document: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The document by orjson, and not checked against its model, which a page of a thousand takes ten times as
    long for."""
    return Response(as_json(document), status, headers, media_type="application/json")


def answer_page(
    key: str,
    found: Sequence[T],
    limit: int,
    row: Callable[[T], Any],
    place: Callable[[T], Sequence[str | int]],
) -> Response:
    """A page; one more than it shows was asked for, to know whether there is another."""
    shown = found[:limit]
    following = cursor_of(*place(shown[-1])) if len(found) > limit else None
    return answer({key: list(map(row, shown)), "next": following})
