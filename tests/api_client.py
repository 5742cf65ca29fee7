"""`ApiClient`: asks an application of `feedq.api.server` in this process, without a server."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

import httpx
from starlette.types import ASGIApp

BASE = "http://127.0.0.1/api/v1"


class ApiClient:
    """Requests from any thread, answered on one event loop in a thread of its own."""

    def __init__(self, app: ASGIApp, *, token: str = "", client: str = "127.0.0.1") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api-client")
        self._thread.start()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(client, 4711))
        self._client = httpx.AsyncClient(transport=transport, base_url=BASE, timeout=60)
        if token:
            self._client.headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._run(self._client.aclose())
        self._run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, asked: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result(timeout=90)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer: httpx.Response = self._run(self._client.request(method, path, **options))
        return answer

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("GET", path, **options)

    def json(self, path: str, **options: Any) -> Any:
        """The document of an answer that must be 200."""
        answer = self.get(path, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()
