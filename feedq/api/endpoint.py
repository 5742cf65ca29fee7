"""Answers requests with verbs: from an address to a verb, from texts and JSON to its arguments, from its answer or
error to JSON. `feedq.api.handler` knows who asks, and calls `Endpoint.answer` in a thread.

A client that accepts ``text/event-stream`` hears how far a verb has come before it gets the answer::

    event: progress
    data: {"done": 500, "total": 3000}

    event: answer
    data: {"count": 3000, ...}
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from http import HTTPStatus
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote

import msgspec

from feedq.api.authentication import RefusalLog
from feedq.control.store.postgresql import PostgresStore
from feedq.core.json_texts import same_number
from feedq.core.roles import AccessRole, Caller
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
from feedq.settings import Settings
from feedq.sinks.base import opened_sink
from feedq.telemetry.logs import LogEvent, log, mask_url
from feedq.verbs import registry
from feedq.verbs.registry import Problem, Progress
from feedq.verbs.wording import printable_lines

PROBLEM_TYPE: Final = "application/problem+json"
STREAM_HEADERS: Final = {
    "Content-Type": registry.STREAM_TYPE,
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # a proxy in front must not keep it back until the end
}
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
BODY_MAX: Final = 16 * 2**20
"""Bytes of a request: a manifest of twenty thousand feeds."""
IN_PATH: Final = re.compile(r"{(\w+)}")
LINE_ENDS: Final = re.compile(r"[\x85\u2028\u2029]")
QUERY_FIELDS_MAX: Final = 1_000
RETRY_AFTER_S: Final = 2
NOBODY: Final = Caller("nobody", AccessRole.VIEWER, tenant="")
UNEXPECTED: Final = "internal error in feedq; see the log of this process"

Refused = Callable[[str, int], object]
"""Hears what was asked, and the status that it was refused with."""

logger = log(__name__)


class NoVerb(NotFound):
    """Nothing is at an address: perhaps the caller uses another release."""


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
    body: bytes | Generator[bytes, None, None]
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": registry.JSON_TYPE})


class Endpoint:
    """Answers requests with the verbs, on one store."""

    def __init__(self, at: registry.At, refused: Refused) -> None:
        """``at`` has the store, settings and sinks; each request brings its caller. ``refused`` writes down what
        somebody was refused."""
        self.at, self.refused = at, refused

    @classmethod
    def of(cls, store: PostgresStore, settings: Settings) -> Self:
        at = registry.At(store, settings, NOBODY, partial(opened_sink, settings, role="api"))
        return cls(at, RefusalLog(store.tokens).write)

    def answer(self, request: Request) -> Answer:
        """Do what is asked. Raises nothing: an error is an answer, too."""
        try:
            verb, in_path = self._found(request.method, request.path.strip("/"))
            # Before the arguments are read: who may not ask is refused, whatever they are.
            verb.require(request.caller)
            arguments = verb.parse(_given(verb, in_path, request))
            if registry.STREAM_TYPE in request.headers.get("accept", "") and not verb.is_stream:
                return Answer(200, self._streamed(verb, arguments, request), STREAM_HEADERS)
            found = verb.call(replace(self.at, caller=request.caller), arguments)
            return Answer(200, _items(found), STREAM_HEADERS) if verb.is_stream else _answered(found)
        except Exception as error:  # noqa: BLE001 -- whatever it is, it becomes an answer, and a bug is logged
            return problem_answer(self._problem(request, error))

    def _problem(self, request: Request, error: Exception) -> Problem:
        problem = problem_of(error)
        if isinstance(error, Forbidden) or isinstance(error.__cause__, Forbidden):
            self.refused(f"{request.method} {registry.PREFIX}{request.path}", problem.status)
        return problem

    def _found(self, method: str, path: str) -> tuple[registry.Verb, dict[str, str]]:
        methods = []
        for address, verb in self._addresses:
            if (found := address.fullmatch(path)) is not None:
                if verb.method == method:
                    return verb, {
                        name: unquote(part, errors="replace") for name, part in found.groupdict().items()
                    }
                methods.append(verb.method)
        if methods:
            raise InvalidInput(f"use {', '.join(sorted(methods))} at this address, not {method}")
        raise NoVerb("there is nothing at this address; openapi.json lists what there is")

    @cached_property
    def _addresses(self) -> list[tuple[re.Pattern[str], registry.Verb]]:
        """Those without names first: ``/feeds/act`` is not a feed."""
        verbs = sorted(registry.load().values(), key=lambda verb: len(verb.in_path))
        return [(re.compile(IN_PATH.sub(r"(?P<\1>[^/]*)", verb.path.strip("/"))), verb) for verb in verbs]

    def _streamed(
        self, verb: registry.Verb, arguments: msgspec.Struct, request: Request
    ) -> Generator[bytes, None, None]:
        events: SimpleQueue[bytes | None] = SimpleQueue()

        def tell(done: int, total: int | None) -> None:
            events.put(_event(registry.PROGRESS, Progress(done, total)))

        def do() -> None:
            try:
                at = replace(self.at, caller=request.caller, told=tell)
                events.put(_event(registry.ANSWER, verb.call(at, arguments)))
            except Exception as error:  # noqa: BLE001 -- as in `answer`
                events.put(_event(registry.PROBLEM, self._problem(request, error)))
            finally:
                events.put(None)

        # With the author of the request: history says who asked for what is done.
        Thread(target=copy_context().run, args=(do,), name="feedq-streamed-verb", daemon=True).start()
        while (event := events.get()) is not None:
            yield event


# -- arguments -----------------------------------------------------------------------------------------


def _given(verb: registry.Verb, in_path: Mapping[str, str], request: Request) -> dict[str, Any]:
    """The arguments as they came. Raises `InvalidInput`."""
    known = verb.arguments.__struct_fields__
    given: dict[str, Any] = {
        argument: request.headers[header]
        for header, argument in FROM_HEADERS.items()
        if header in request.headers and argument in known
    }
    if not verb.changes:
        given |= arguments_in(verb, request.query)
    elif request.query:
        raise InvalidInput(
            "a request that changes something takes its arguments in the body, not in the address"
        )
    elif request.body:
        given |= _from_body(request.body)
    return {**given, **in_path}


def arguments_in(verb: registry.Verb, query: str) -> dict[str, Any]:
    """Arguments out of a query string; the keys of a selection stand beside the others there.

    Raises `InvalidInput`.
    """
    texts: dict[str, list[str]] = defaultdict(list)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="replace")
    except ValueError:
        raise InvalidInput(f"an address has at most {QUERY_FIELDS_MAX} arguments") from None
    for name, text in pairs:
        texts[name].append(text)
    kinds = _kinds(verb.arguments)
    found: dict[str, Any] = {}
    if "select" in kinds:
        of_selection = _kinds(Selection)
        registry.check_names("", texts, [name for name in kinds if name != "select"] + list(of_selection))
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
        raise InvalidInput(f"{name}: is given {len(texts)} times; give it once")
    return texts[0]


_BODY: Final = msgspec.json.Decoder(float_hook=same_number)


def _from_body(body: bytes) -> dict[str, Any]:
    """Raises `InvalidInput`, which quotes nothing: a body may hold secrets."""
    try:
        found = _BODY.decode(body)
    except (ValueError, RecursionError):
        raise InvalidInput("the body is not valid JSON") from None
    if not isinstance(found, dict):
        raise InvalidInput("the body must be a JSON object with the arguments")
    return found


# -- answers -------------------------------------------------------------------------------------------


def _answered(found: Any) -> Answer:
    headers = {"Content-Type": registry.JSON_TYPE}
    if (etag := getattr(found, "etag", None)) is not None:
        headers["ETag"] = f'"{etag}"'
    return Answer(200, registry.encode(found), headers)


def _event(kind: str, document: Any) -> bytes:
    # JSON has these as they are, and some clients take them for the end of a line.
    data = LINE_ENDS.sub(lambda found: f"\\u{ord(found[0]):04x}", registry.encode(document).decode())
    return f"event: {kind}\ndata: {data}\n\n".encode()


def _items(found: Iterator[dict[str, Any] | None]) -> Generator[bytes, None, None]:
    """What a verb finds one by one; None is a sign of life."""
    for one in found:
        yield b": nothing yet\n\n" if one is None else _event(one["event"], one)


def problem_answer(problem: Problem) -> Answer:
    headers = {"Content-Type": PROBLEM_TYPE}
    if problem.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return Answer(problem.status, registry.encode(problem), headers)


def error_name(status: int) -> str:
    """What programs tell an error of this status by."""
    found = next((kind.__name__ for kind, number in STATUSES if number == status), None)
    return found or (InvalidInput.__name__ if status < 500 else HTTPStatus(status).name)


def problem_of(error: Exception) -> Problem:
    """An error as it is told. A bug is told without its insides; those are in the log."""
    if not isinstance(error, FeedqError):
        logger.error(LogEvent.UNEXPECTED, exc_info=error)
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        return Problem(status.phrase, status, UNEXPECTED, status.name)
    status = HTTPStatus(next(number for kind, number in STATUSES if isinstance(error, kind)))
    detail = printable_lines(mask_url(str(error)))
    return Problem(status.phrase, status, detail, type(error).__name__)
