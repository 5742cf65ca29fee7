"""`Flower`: ``celery -A feedq flower`` as a process, and a client for it."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.cluster import wait_until
from tests.node import Node


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.text)
        return document


StartFlower = Callable[..., "Flower"]


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are answers here."""

    def redirect_request(self, *_: object) -> None:
        return None


OPENER = urllib.request.build_opener(NoRedirects)


class Flower:
    """A Flower process, and a client for it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        node.start()
        wait_until(self._address, lambda: f"Flower listens:\n{node.text()}", interval_s=0.1)
        self.base = f"http://127.0.0.1:{self._address()}"
        wait_until(self._answers, lambda: f"Flower answers:\n{node.text()}", interval_s=0.1)

    def _address(self) -> str:
        assert self.node.is_running(), self.node.text()
        found = re.search(r"Visit me at http://127\.0\.0\.1:(\d+)", self.node.text())
        return found[1] if found else ""

    def _answers(self) -> bool:
        try:
            return bool(self.get("/healthcheck").status)
        except OSError:
            return False

    def get(self, path: str, *, login: str = "", headers: Mapping[str, str] | None = None) -> Answer:
        return self._ask(urllib.request.Request(self.base + path, headers=dict(headers or {})), login)

    def post(
        self, path: str, body: str = "", *, login: str = "", headers: Mapping[str, str] | None = None
    ) -> Answer:
        request = urllib.request.Request(self.base + path, data=body.encode(), headers=dict(headers or {}))
        return self._ask(request, login)

    @staticmethod
    def _ask(request: urllib.request.Request, login: str) -> Answer:
        if login:
            request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        try:
            with OPENER.open(request, timeout=30) as answer:
                return Answer(answer.status, answer.read().decode(errors="replace"), dict(answer.headers))
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode(), dict(error.headers))
