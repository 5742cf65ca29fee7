"""Answers requests with verbs, whatever server they came through.

`feedq api` reads requests with Starlette, Flower with Tornado. Both know the caller, and call `Endpoint.answer` in
a thread. Everything in between is here: from an address to a verb, from texts and JSON to its arguments, from its
answer or error to JSON.

A client that accepts ``text/event-stream`` hears how far a verb has come before it gets the answer::

    event: progress
    data: {"done": 500, "total": 3000}

    event: answer
    data: {"count": 3000, ...}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from feedq.core.roles import Caller
from feedq.core.selection import Selection
from feedq.errors import (
    Conflict,
    FeedqError,
    Forbidden,
    InvalidInput,
    NotFound,
    Outdated,
    Unauthenticated,
)
from feedq.telemetry.logs import LogEvent, log, mask_url
from feedq.verbs.registry import VERBS, At, Verb
from feedq.verbs.wording import printable

JSON_TYPE: Final = "application/json"
PROBLEM_TYPE: Final = "application/problem+json"
STREAM_TYPE: Final = "text/event-stream"
STATUSES: Final = (
    (Unauthenticated, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (InvalidInput, 400),
    (Outdated, 412),
    (Conflict, 409),
    (FeedqError, 503),
)
"""HTTP statuses by error; the first that fits counts."""
FROM_HEADERS: Final = {"if-match": "expected", "idempotency-key": "key"}
"""Arguments of verbs that HTTP has headers for."""
QUERY_FIELDS_MAX: Final = 1_000
UNEXPECTED: Final = "an error inside feedq; the log of this process has it"

logger = log(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose caller is known."""

    method: str
    path: str
    """As it was sent, below the prefix: a slash within a name is ``%2F``."""
    caller: Caller
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """With names in small letters."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send back; a stream of events comes in parts."""

    status: int
    body: bytes | Iterator[bytes]
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": JSON_TYPE})


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong (RFC 9457). ``error``, by which programs tell errors apart, is a class of `feedq.errors`."""

    title: str
    status: int
    detail: str
    error: str
    type: str = "about:blank"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a verb has come."""

    done: int
    total: int | None


class Endpoint:
    """The verbs at one store."""

    def __init__(self, at: At) -> None:
        """``at`` has the store, settings and sinks; each request brings its caller."""
        self._at = at

    def answer(self, request: Request) -> Answer:
        """Do what is asked. Raises nothing: an error is an answer, too."""
        try:
            verb, given = self._understood(request)
            arguments = verb.parse(given, texts=not verb.changes)
            if STREAM_TYPE in request.headers.get("accept", ""):
                return Answer(200, self._streamed(verb, arguments, request), {"Content-Type": STREAM_TYPE})
            return _answered(verb.call(self._at_of(request), arguments))
        except Exception as error:  # noqa: BLE001 -- whatever it is, it becomes an answer, and a bug is logged
            return _problem_answer(error)

    def _at_of(self, request: Request, **more: Any) -> At:
        return replace(self._at, caller=request.caller, **more)

    def _understood(self, request: Request) -> tuple[Verb, dict[str, Any]]:
        """The verb that is asked for, and its arguments as they came. Raises `NotFound`, `InvalidInput`."""
        parts = request.path.strip("/").split("/")
        verb, in_path = self._found(request.method, parts)
        given = {FROM_HEADERS[name]: value for name, value in request.headers.items() if name in FROM_HEADERS}
        given = {name: value for name, value in given.items() if name in verb.arguments.__struct_fields__}
        given |= in_path
        if not verb.changes:
            return verb, given | arguments_in(verb, request.query)
        if request.body:
            given |= _from_body(request.body)
        return verb, given

    def _found(self, method: str, parts: Sequence[str]) -> tuple[Verb, dict[str, str]]:
        methods = []
        for template, verb in self._templates:
            if (in_path := _matched(template, parts)) is not None:
                if verb.method == method:
                    return verb, in_path
                methods.append(verb.method)
        if methods:
            raise InvalidInput(f"{method} does nothing at this address; {', '.join(sorted(methods))} does")
        raise NotFound("nothing is at this address; openapi.json lists what there is")

    @cached_property
    def _templates(self) -> list[tuple[list[str], Verb]]:
        """Those without names first: ``/feeds/act`` is no feed."""
        found = [(verb.path.strip("/").split("/"), verb) for verb in VERBS.values()]
        return sorted(found, key=lambda one: sum(part.startswith("{") for part in one[0]))

    def _streamed(self, verb: Verb, arguments: msgspec.Struct, request: Request) -> Iterator[bytes]:
        events: SimpleQueue[bytes | None] = SimpleQueue()

        def tell(done: int, total: int | None) -> None:
            events.put(_event("progress", Progress(done, total)))

        def do() -> None:
            try:
                found = verb.call(self._at_of(request, told=tell), arguments)
                if isinstance(found, Iterator):
                    for one in found:
                        events.put(_event("item", one))
                else:
                    events.put(_event("answer", found))
            except Exception as error:  # noqa: BLE001 -- as in `answer`
                events.put(_event("problem", problem_of(error)))
            finally:
                events.put(None)

        # With the author of the request: history says who asked for what is done.
        Thread(target=copy_context().run, args=(do,), name="feedq-streamed-verb", daemon=True).start()
        while (event := events.get()) is not None:
            yield event


def _matched(template: Sequence[str], parts: Sequence[str]) -> dict[str, str] | None:
    if len(template) != len(parts):
        return None
    found = {}
    for wanted, part in zip(template, parts, strict=True):
        if wanted.startswith("{"):
            found[wanted.strip("{}")] = unquote(part, errors="replace")
        elif wanted != part:
            return None
    return found


# -- arguments -----------------------------------------------------------------------------------------


def arguments_in(verb: Verb, query: str) -> dict[str, Any]:
    """Arguments out of a query string; the keys of a selection stand beside the others there.

    Raises `InvalidInput`.
    """
    texts: dict[str, list[str]] = defaultdict(list)
    for name, text in parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX):
        texts[name].append(text)
    kinds = _kinds(verb.arguments)
    found: dict[str, Any] = {}
    if "select" in kinds:
        of_selection = _kinds(Selection)
        chosen = {name: texts.pop(name) for name in list(texts) if name in of_selection}
        if chosen:
            found["select"] = {
                name: _shaped(name, of_selection[name], given) for name, given in chosen.items()
            }
    return found | {name: _shaped(name, kinds.get(name), given) for name, given in texts.items()}


def _kinds(of: type) -> dict[str, Any]:
    described: Any = msgspec.inspect.type_info(of)
    return {one.name: one.type for one in described.fields}


def _shaped(name: str, kind: Any, texts: list[str]) -> Any:
    """Texts as a list, a mapping or one value, as the argument wants it. Raises `InvalidInput`."""
    if isinstance(kind, msgspec.inspect.CollectionType):
        return texts
    if isinstance(kind, msgspec.inspect.DictType):
        pairs = [text.partition("=") for text in texts]
        for text, (key, equals, _) in zip(texts, pairs, strict=True):
            if not key or not equals:
                raise InvalidInput(f"{name}: {text!r} must be written as key=value")
        return {key: value for key, _, value in pairs}
    if len(texts) > 1:
        raise InvalidInput(f"{name}: is there {len(texts)} times; give it once")
    return texts[0]


def _from_body(body: bytes) -> dict[str, Any]:
    """Raises `InvalidInput`, which quotes nothing: a body may hold secrets."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidInput("the body is no valid JSON") from None
    if not isinstance(found, dict):
        raise InvalidInput("the body must be a JSON object with the arguments")
    return found


# -- answers -------------------------------------------------------------------------------------------


def encode(document: Any) -> bytes:
    """A document as JSON; the one encoder of commands and API."""
    return msgspec.json.encode(document)


def _answered(found: Any) -> Answer:
    headers = {"Content-Type": JSON_TYPE}
    if (etag := getattr(found, "etag", None)) is not None:
        headers["ETag"] = f'"{etag}"'
    return Answer(200, encode(found), headers)


def _event(kind: str, document: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), encode(document))


def _problem_answer(error: Exception) -> Answer:
    problem = problem_of(error)
    headers = {"Content-Type": PROBLEM_TYPE}
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Answer(problem.status, encode(problem), headers)


def problem_of(error: Exception) -> Problem:
    """An error as it is told. A bug is told without its insides; those are in the log."""
    if not isinstance(error, FeedqError):
        logger.error(LogEvent.UNEXPECTED, exc_info=error)
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        return Problem(status.phrase, status, UNEXPECTED, status.name)
    status = HTTPStatus(next(number for kind, number in STATUSES if isinstance(error, kind)))
    detail = "\n".join(map(printable, mask_url(str(error)).split("\n")))
    return Problem(status.phrase, status, detail, type(error).__name__)
