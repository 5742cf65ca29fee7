"""The handler of the HTTP API: the same in `feedq api` and, behind Flower's login, in Flower; and the server of
`feedq api`. Whoever serves closes the store.

It knows who asks, bounds what one request may cost, and hands the request to the endpoint in a thread. Who asks is
judged before the body is read, and what is refused anyway is read to its end without being kept, so that whoever
sends it hears why.

A database that is away or frozen blocks a call for long. Each call runs on a daemon thread of its own, so that it
cannot keep the process from ending. Whoever asked waits for it with a timeout and hears when that is over; the
thread keeps its place until it ends, as the time-outs of the control database have it. What comes while all places
are taken is refused at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from http import HTTPStatus
from threading import Thread
from typing import Any, Final, TypeVar

from tornado import web
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream, StreamClosedError

from feedq.api.authentication import asker_of, known_caller, reason_in
from feedq.api.endpoint import (
    BODY_MAX,
    NOBODY,
    UNEXPECTED,
    Answer,
    Endpoint,
    Request,
    error_name,
    problem_answer,
    problem_of,
)
from feedq.api.openapi import openapi
from feedq.core.authorship import set_author
from feedq.core.roles import Caller
from feedq.errors import FeedqError, Unauthenticated, Unavailable
from feedq.verbs.registry import JSON_TYPE, PREFIX, Problem, encode

T = TypeVar("T")

TIMEOUT_S: Final = 30.0
PLACES: Final = 64
"""More wait for the connections of the pool than it would answer within the timeout."""
STREAMS_MAX: Final = 20
"""Streams of events that are sent at a time; each has a thread."""


def in_thread(job: Callable[[], T]) -> asyncio.Future[T]:
    """What a blocking function returns, called with the context of whoever asks."""
    called: Future[T] = Future()
    called.set_running_or_notify_cancel()  # from here on nobody takes it back
    context = copy_context()

    def work() -> None:
        try:
            called.set_result(context.run(job))
        except BaseException as error:  # noqa: BLE001 -- it is raised again where somebody waits
            called.set_exception(error)

    future = asyncio.wrap_future(called)
    # Looked at here: perhaps nobody waits for it any more.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    Thread(target=work, name="feedq-call", daemon=True).start()
    return future


class Calls:
    """Calls blocking functions, a bounded number at a time. To be used from one event loop."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S, places: int = PLACES) -> None:
        self.timeout_s = timeout_s
        self._free = places
        self.requests: set[asyncio.Task[Any]] = set()
        """Requests of the API that are being answered."""
        self.streams = 0
        """Streams of events that are being sent."""

    async def call(self, job: Callable[[], T], *, until: float | None = None) -> T:
        """Returns what ``job`` does; ``until``, in the loop's time, is when the timeout is over if it has begun.

        Raises `Unavailable`, and as ``job`` does.
        """
        if self._free <= 0:
            raise Unavailable("too many requests at once; try again in a moment")
        self._free -= 1
        called = in_thread(job)
        called.add_done_callback(self._give_back)
        end = asyncio.get_running_loop().time() + self.timeout_s if until is None else until
        try:
            async with asyncio.timeout_at(end):
                found: T = await asyncio.shield(called)
                return found
        except TimeoutError:
            late = f"no answer within {self.timeout_s:g} s; it is unknown whether anything was changed"
            raise Unavailable(late) from None

    def _give_back(self, _: asyncio.Future[Any]) -> None:
        self._free += 1


@web.stream_request_body
class ApiHandler(web.RequestHandler):
    """Answers one request."""

    challenge = "Bearer"
    """What a client has to send that nobody knows."""

    def initialize(
        self, endpoint: Endpoint, calls: Calls, changed: Callable[[], object] = lambda: None
    ) -> None:
        """``changed`` hears that somebody may have changed something."""
        self._endpoint, self._calls, self._changed = endpoint, calls, changed
        self._body, self._size = bytearray(), 0
        self._refused: FeedqError | None = None

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.clear_header("Server")
        self.set_header("Cache-Control", "no-store")

    def compute_etag(self) -> None:
        """Make up no ETag: the answer of a verb has its own, or none."""

    async def prepare(self) -> None:
        super().prepare()
        if (task := asyncio.current_task()) is not None:
            self._calls.requests.add(task)
            task.add_done_callback(self._calls.requests.discard)
        self._until = asyncio.get_running_loop().time() + self._calls.timeout_s
        try:
            self.caller = await self.who_asks()
            set_author(asker_of(self.caller, self.request.remote_ip, reason_in(self.request.headers)))
        except FeedqError as error:
            self._refused = error

    @property
    def address(self) -> str:
        """What is asked, below the prefix, as it was sent."""
        return self.request.path.removeprefix(PREFIX)

    async def who_asks(self) -> Caller:
        """Raises `Unauthenticated`, `Unavailable`."""
        set_author(asker_of(NOBODY, self.request.remote_ip, ""))
        return await self._call(self._known)

    def _known(self) -> Caller:
        try:
            return known_caller(self._endpoint.at, self.request.headers, self.request.remote_ip or "")
        except Unauthenticated:
            asked = f"{self.request.method} {self.request.path}"
            self._endpoint.refused(asked, HTTPStatus.UNAUTHORIZED)
            raise

    def data_received(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._refused is None and self._size <= BODY_MAX:
            self._body += chunk

    async def get(self, *_: str) -> None:
        try:
            answer = await self._answered()
        except FeedqError as error:
            answer = problem_answer(problem_of(error))
        self._begin(answer)
        if isinstance(answer.body, bytes):
            with suppress(StreamClosedError):  # whoever asked has left
                await self.finish(answer.body)
        else:
            await self._stream(answer.body)

    post = put = patch = delete = get

    def on_finish(self) -> None:
        if self.request.method != "GET":
            self._changed()

    async def _answered(self) -> Answer:
        """Raises `FeedqError`."""
        if self._refused is not None:
            raise self._refused
        if self._size > BODY_MAX:
            return _problem(413, f"the body is larger than {BODY_MAX} bytes; send it in parts")
        if self.address == "/openapi.json":
            return Answer(200, _openapi())
        method, query = self.request.method or "", self.request.query
        headers = {name.lower(): value for name, value in self.request.headers.items()}
        asked = Request(method, self.address, self.caller, query, headers, bytes(self._body))
        answer = await self._call(partial(self._endpoint.answer, asked))
        if not isinstance(answer.body, bytes) and self._calls.streams >= STREAMS_MAX:
            raise Unavailable(f"{STREAMS_MAX} streams are open already; try again in a moment")
        return answer

    async def _call(self, job: Callable[[], T]) -> T:
        return await self._calls.call(job, until=self._until)

    def _begin(self, answer: Answer) -> None:
        self.set_status(answer.status)
        for name, value in answer.headers.items():
            self.set_header(name, value)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            self.set_header("WWW-Authenticate", self.challenge)

    async def _stream(self, parts: Generator[bytes, None, None]) -> None:
        """Send each part as it comes, until the end or until whoever asked has left or reads no more."""
        self._calls.streams += 1
        try:
            while part := await in_thread(partial(next, parts, b"")):
                self.write(part)
                async with asyncio.timeout(self._calls.timeout_s):
                    await self.flush()
            await self.finish()
        except (StreamClosedError, TimeoutError):
            connection: Any = self.request.connection
            connection.close()
        finally:
            self._calls.streams -= 1
        await in_thread(parts.close)

    def write_error(self, status_code: int, **about: Any) -> None:
        """Say what Tornado or Flower refuses in the form of every other error."""
        error = about.get("exc_info", (None, None))[1]
        said = error.get_message() if isinstance(error, web.HTTPError) else UNEXPECTED
        answer = _problem(status_code, said or HTTPStatus(status_code).description)
        self._begin(answer)
        assert isinstance(answer.body, bytes)
        self.finish(answer.body)


def _problem(status: int, detail: str) -> Answer:
    return problem_answer(Problem(HTTPStatus(status).phrase, status, detail, error_name(status)))


@cache
def _openapi() -> bytes:
    return encode(openapi())


# -- the server of `feedq api` -------------------------------------------------------------------------


CONNECTIONS_MAX: Final = 500
"""Others are closed at once."""
IDLE_S: Final = 10.0
"""A connection is closed that takes longer to begin a request and to send its first line and headers."""
HEADERS_MAX: Final = 64 * 1024
"""Bytes of the first line and the headers of a request."""
GRACE_S: Final = 3.0
"""Requests under way are answered for so long after the server was told to stop."""


class ApiServer(HTTPServer):
    """Serves no more than `CONNECTIONS_MAX` connections."""

    def handle_stream(self, stream: IOStream, address: tuple[str, int]) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            stream.close()
        else:
            super().handle_stream(stream, address)


class Health(web.RequestHandler):
    """The process answers, whatever the servers behind it do."""

    def get(self) -> None:
        self.clear_header("Server")
        self.set_header("Content-Type", JSON_TYPE)
        self.finish(b'{"status":"ok"}')


async def serve(endpoint: Endpoint, listening: Sequence[socket.socket], told_to_stop: asyncio.Event) -> None:
    """Serve the API on these sockets until told to stop."""
    calls = Calls()
    application = web.Application(
        [(r"/healthz", Health), (r".*", ApiHandler, {"endpoint": endpoint, "calls": calls})],
        log_function=lambda _: None,
    )
    server = ApiServer(
        application,
        # Who asks is known by address, and not by what headers say: no `xheaders`.
        idle_connection_timeout=IDLE_S,
        body_timeout=TIMEOUT_S,
        max_header_size=HEADERS_MAX,
    )
    server.add_sockets(listening)
    await told_to_stop.wait()
    server.stop()
    if calls.requests:
        await asyncio.wait(calls.requests, timeout=GRACE_S)
    await server.close_all_connections()
    # Streams hear of it with their next event.
    if calls.requests:
        await asyncio.wait(calls.requests, timeout=GRACE_S)
