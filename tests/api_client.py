"""`ServedApi` serves an API on a free port of the loopback; `ApiClient` asks one that is served for it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Self

import httpx
from tornado.netutil import bind_sockets

from feedq.api.endpoint import Endpoint
from feedq.api.handler import serve


class Closed:
    """Closed at the end of a block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


class ServedApi(Closed):
    """The server of `feedq api`, on an event loop in a thread of its own."""

    def __init__(self, endpoint: Endpoint) -> None:
        listening = bind_sockets(0, "127.0.0.1")
        self.url = f"http://127.0.0.1:{listening[0].getsockname()[1]}"
        self._told_to_stop = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        running = serve(endpoint, listening, self._told_to_stop)
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[running], name="api")
        self._thread.start()

    def tell_to_stop(self) -> None:
        self._loop.call_soon_threadsafe(self._told_to_stop.set)

    def close(self) -> None:
        if self._thread.is_alive():
            self.tell_to_stop()
        self._thread.join()
        self._loop.close()


class ApiClient(Closed):
    """Requests from any thread."""

    def __init__(self, endpoint: Endpoint, *, token: str = "") -> None:
        self.served = ServedApi(endpoint)
        self.url = self.served.url
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=60)

    def close(self) -> None:
        self._client.close()
        self.served.close()

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._client.request(method, path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("GET", path, **options)

    def json(self, path: str, **options: Any) -> Any:
        """The document of an answer that must be 200."""
        answer = self.get(path, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()
