"""How an endpoint answers: a document as JSON, or a problem; and the models that the OpenAPI document has of both.

Errors are ``application/problem+json`` (RFC 9457), in the words of the command line: ``detail`` is what it would
print, ``error`` the class of `feedq.errors`, by which programs tell one error from another. A bug answers 500
without a word of its insides; those are in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Literal, TypeVar

from anyio import to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Scope

from feedq.api.arguments import cursor_of
from feedq.core.values import explained_type
from feedq.errors import Conflict, FeedqError, Forbidden, InvalidInput, NotFound, Outdated, Unauthenticated
from feedq.telemetry.logs import LogEvent, log, mask_url
from feedq.verbs.wording import as_json, printable

T = TypeVar("T")

MEDIA_TYPE = "application/problem+json"
PROBLEM = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "What was asked is wrong, or cannot be done as things stand.", **PROBLEM},
    "5XX": {"description": "A server that feedq needs does not answer.", **PROBLEM},
}
STATUSES = (
    (Unauthenticated, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (InvalidInput, 400),
    (Outdated, 412),
    (Conflict, 409),
    (FeedqError, 503),
)
"""HTTP statuses by error; the first that fits counts."""
UNEXPECTED = "an error inside feedq; the log of this process has it"

logger = log(__name__)


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


# -- problems -------------------------------------------------------------------------------------------


class Problem(BaseModel):
    """What went wrong."""

    type: Literal["about:blank"] = "about:blank"
    title: str
    status: int
    detail: str
    error: str


def status_of(error: FeedqError) -> int:
    return next(status for kind, status in STATUSES if isinstance(error, kind))


def problem(status: int, detail: str, *, error: str, headers: dict[str, str] | None = None) -> Response:
    shown = "\n".join(map(printable, mask_url(detail).split("\n")))
    document = Problem(title=HTTPStatus(status).phrase, status=status, detail=shown, error=error)
    return Response(as_json(document.model_dump()), status, headers, media_type=MEDIA_TYPE)


def answer_errors(app: FastAPI) -> None:
    """Have the application answer every error as a problem."""
    app.add_exception_handler(FeedqError, _expected)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(Exception, _unexpected)


def problem_of(error: FeedqError) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthenticated) else None
    return problem(status_of(error), str(error), error=type(error).__name__, headers=headers)


async def _expected(request: Request, error: Exception) -> Response:
    assert isinstance(error, FeedqError)
    if isinstance(error, Forbidden):
        refusals = request.app.state.backend.refusals
        await to_thread.run_sync(refusals.write, asked(request.scope), status_of(error))
    return problem_of(error)


def asked(scope: Scope) -> str:
    """What a request asks for, to be written down."""
    return f"{scope['method']} {scope['path']}"


def _invalid(_: Request, error: Exception) -> Response:
    """Arguments and bodies that are not what the document says: named, and never quoted."""
    assert isinstance(error, RequestValidationError)
    found = [f"{_place(one)}: {_what(one)}" for one in error.errors()]
    return problem(400, "; ".join(found), error=InvalidInput.__name__)


def _place(error: Any) -> str:
    """Leaves out in what part of the request it is: names are not used twice."""
    # What is no JSON is placed by a number of characters.
    return ".".join(map(str, error["loc"][1:] if error["type"] != "json_invalid" else ())) or "the body"


def _what(error: Any) -> str:
    if error["type"] == "json_invalid":
        return "is no valid JSON"
    if isinstance(cause := error.get("ctx", {}).get("error"), ValueError):
        return str(cause)
    return explained_type(error)


def _of_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: "nothing is at this address; /api/v1/openapi.json lists what there is"}
    detail = words.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    return problem(error.status_code, detail, error=HTTPStatus(error.status_code).name, headers=headers)


def _unexpected(_: Request, error: Exception) -> Response:
    logger.error(LogEvent.UNEXPECTED, exc_info=error)
    return problem(500, UNEXPECTED, error="INTERNAL_SERVER_ERROR")
