"""A request to the API costs no more than it may: bytes, time, and places."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from feedq.api.bounds import BoundedBodies, BoundedRequests
from feedq.api.endpoint import BODY_MAX


class Waiting:
    """An application that answers with the length of the body once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.path = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.path = scope["path"]
        body = (await receive())["body"]
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(len(body)).encode()})


def client(inner: Waiting, **bounds: Any) -> httpx.AsyncClient:
    body_max = bounds.pop("body_max", BODY_MAX)
    transport = httpx.ASGITransport(BoundedRequests(BoundedBodies(inner, body_max=body_max), **bounds))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


async def test_a_body_may_be_so_large_and_no_larger() -> None:
    inner = Waiting()
    inner.may_answer.set()
    async with client(inner, body_max=10) as api:
        assert (await api.post("/", content=b"x" * 10)).text == "10"
        answer = await api.post("/", content=b"x" * 11)
    assert (answer.status_code, answer.json()["status"]) == (413, 413)


async def test_who_waits_too_long_is_told_that_nothing_is_known() -> None:
    async with client(Waiting(), timeout_s=0.05) as api:
        answer = await api.get("/")
    assert answer.status_code == 503
    assert answer.json()["detail"] == "no answer within 0.05 s; whether a change was made is not known"


async def test_what_comes_while_all_places_are_taken_is_turned_away_at_once() -> None:
    inner = Waiting()
    async with client(inner, places=1) as api:
        first = asyncio.create_task(api.get("/"))
        while not inner.path:
            await asyncio.sleep(0)
        answer = await api.get("/")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        inner.may_answer.set()
        assert (await first).status_code == 200
        assert (await api.get("/")).status_code == 200


@pytest.mark.parametrize("path", ["/feeds/acme%2Forders", "/feeds/a%20b"])
async def test_a_path_is_left_as_it_was_sent(path: str) -> None:
    inner = Waiting()
    inner.may_answer.set()
    async with client(inner) as api:
        await api.get(path)
    assert inner.path == path
