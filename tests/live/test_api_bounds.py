"""A request to the API costs no more than it may, and one whose client has left costs nothing any more."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import httpx
import pytest

from feedq.api import handler
from feedq.api.endpoint import BODY_MAX, STREAM_HEADERS, Answer, Endpoint, Request
from feedq.api.handler import Calls
from feedq.control.store.postgresql import PostgresStore
from feedq.core.authorship import Author, acting, given_reason
from feedq.errors import Unavailable
from feedq.settings import Settings
from tests.api_client import ApiClient
from tests.cluster import wait_until

LONG_S = 30.0
"""Longer than any test: a wait that gets there has failed."""


class Gate(Endpoint):
    """Answers with the length of the body, or with a stream, once it may; asks no database for who asks."""

    def __init__(self) -> None:
        settings = Settings(api_loopback_role="viewer")
        store = PostgresStore(settings.database_url.get_secret_value())
        super().__init__(Endpoint.of(store, settings).at, lambda asked, status: None)
        self.may_answer = Event()
        self.asked: list[Request] = []
        self.left = 0
        """Streams that have ended."""

    def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        if request.path == "/stream":
            return Answer(200, self._events(), STREAM_HEADERS)
        assert self.may_answer.wait(LONG_S)
        return Answer(200, str(len(request.body)).encode())

    def _events(self) -> Generator[bytes, None, None]:
        try:
            yield b": begun\n\n"
            while not self.may_answer.wait(0.05):
                yield b": nothing yet\n\n"
            yield b"event: end\ndata: {}\n\n"
        finally:
            self.left += 1


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.may_answer.set()


@contextmanager
def in_turn(api: ApiClient, gate: Gate, path: str = "/") -> Iterator[Future[httpx.Response]]:
    """A request that is being answered."""
    asked = len(gate.asked)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(api.get, path)
        wait_until(lambda: len(gate.asked) > asked, limit_s=LONG_S, what="the request is being answered")
        yield answer
        gate.may_answer.set()


def raw(api: ApiClient) -> socket.socket:
    host, port = api.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=LONG_S)


# -- bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_may_be_so_large_and_no_larger(gate: Gate, is_chunked: bool) -> None:
    gate.may_answer.set()

    def body(size: int) -> Any:
        whole = b"x" * size
        return iter([whole[:10], whole[10:]]) if is_chunked else whole

    with ApiClient(gate) as api:
        assert api.ask("POST", "/", content=body(BODY_MAX)).text == str(BODY_MAX)
        answer = api.ask("POST", "/", content=body(BODY_MAX + 1))
        assert (answer.status_code, answer.json()["status"]) == (413, 413)
        assert answer.json()["error"] == "InvalidInput"
        assert len(gate.asked) == 1


def test_the_body_of_a_stranger_is_not_kept(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr(handler.ApiHandler, "on_finish", lambda asked: kept.append(len(asked._body)))
    gate.may_answer.set()
    with ApiClient(gate) as api:
        assert api.ask("POST", "/", content=b"x" * 100_000).status_code == 200
        strange = {"X-Forwarded-For": "10.0.0.7"}
        assert api.ask("POST", "/", content=b"x" * 100_000, headers=strange).status_code == 401
    assert kept == [100_000, 0]


def test_headers_are_bounded_in_bytes_and_in_time(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "IDLE_S", 0.2)
    with ApiClient(gate) as api, raw(api) as long, raw(api) as slow:
        long.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * (handler.HEADERS_MAX + 1))
        assert long.recv(1) == b""
        slow.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert slow.recv(1) == b""


def test_a_connection_that_rests_is_closed(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "IDLE_S", 1.0)
    with ApiClient(gate) as api, raw(api) as resting:
        resting.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: resting.recv(4_096), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"Server:" not in answer


def test_a_body_is_waited_for_so_long(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "TIMEOUT_S", 0.2)
    with ApiClient(gate) as api, raw(api) as slow:
        slow.sendall(b"POST /api/v1/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nx")
        assert slow.recv(1) == b""
    assert gate.asked == []


def test_connections_are_bounded(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "CONNECTIONS_MAX", 1)
    with ApiClient(gate) as api, raw(api) as first:
        first.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert first.recv(4_096).startswith(b"HTTP/1.1 200 OK")
        with raw(api) as second:
            assert second.recv(1) == b""


# -- time and places ---------------------------------------------------------------------------------


def test_who_waits_too_long_is_told_that_nothing_is_known(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Calls.__init__, "__kwdefaults__", {"timeout_s": 0.2, "places": 64})
    with ApiClient(gate) as api:
        answer = api.get("/")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert answer.json()["detail"] == "no answer within 0.2 s; it is unknown whether anything was changed"


async def test_what_comes_while_all_places_are_taken_is_refused_at_once() -> None:
    may_end, made = Event(), Calls(timeout_s=0.1, places=2)
    asked = [asyncio.ensure_future(made.call(lambda: may_end.wait(LONG_S))) for _ in range(2)]
    late = await asyncio.gather(*asked, return_exceptions=True)
    assert all("it is unknown whether anything was changed" in str(outcome) for outcome in late)
    # A thread keeps its place until it ends.
    with pytest.raises(Unavailable, match="too many requests"):
        await made.call(lambda: None)
    may_end.set()
    async with asyncio.timeout(LONG_S):
        while made._free < 2:
            await asyncio.sleep(0)
    made.timeout_s = LONG_S
    assert await made.call(lambda: "here") == "here"


async def test_a_call_is_made_for_who_asked_for_it() -> None:
    made = Calls()
    with acting(Author("ada", "10.0.0.7", "a visit")):
        assert await made.call(given_reason) == "a visit"
    assert await made.call(given_reason) is None


# -- streams -----------------------------------------------------------------------------------------


def test_streams_are_bounded_and_end_with_who_listens(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "STREAMS_MAX", 1)
    with ApiClient(gate) as api, httpx.Client(base_url=f"{api.url}/api/v1", timeout=LONG_S) as other:
        with other.stream("GET", "/stream") as listening:
            parts = listening.iter_raw()  # which ends the connection when it is forgotten
            assert next(parts) == b": begun\n\n"
            refused = api.get("/stream")
            assert (refused.status_code, refused.json()["error"]) == (503, "Unavailable")
            assert api.ask("GET", "/stream").status_code == 503
        wait_until(lambda: gate.left == 1, limit_s=LONG_S, what="the stream ends with who listened")
        wait_until(lambda: _is_streamed(other), limit_s=LONG_S, what="another one is sent in its place")


def _is_streamed(client: httpx.Client) -> bool:
    with client.stream("GET", "/stream") as answer:
        return answer.status_code == 200


def test_a_server_that_ends_answers_what_it_was_asked(gate: Gate) -> None:
    with ApiClient(gate) as api, in_turn(api, gate) as answer:
        api.served.tell_to_stop()
        wait_until(lambda: not _listens(api), limit_s=LONG_S, what="nobody else is let in")
        gate.may_answer.set()
        assert answer.result(LONG_S).status_code == 200


def test_a_server_that_ends_waits_for_a_stream_only_so_long(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "GRACE_S", 0.2)
    with ApiClient(gate) as api, raw(api) as listening:
        listening.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert listening.recv(4_096).startswith(b"HTTP/1.1 200 OK")
        api.served.tell_to_stop()
        assert not b"".join(iter(lambda: listening.recv(4_096), b"")).endswith(b"0\r\n\r\n")
    assert not gate.may_answer.is_set()
    assert gate.left == 1


def _listens(api: ApiClient) -> bool:
    try:
        raw(api).close()
    except ConnectionError:
        return False
    return True


# -- addresses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/feeds/acme%2Forders", "/feeds/a%20b", "/feeds/%ff"])
def test_a_path_is_left_as_it_was_sent(gate: Gate, path: str) -> None:
    gate.may_answer.set()
    with ApiClient(gate) as api:
        api.get(path)
    assert gate.asked[0].path == path
