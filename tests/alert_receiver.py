"""`AlertReceiver`: an HTTP server that takes alerts as apprise posts them, refuses them, or hangs."""

from __future__ import annotations

import json
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

OK, REFUSED = 200, 503


class AlertReceiver:
    """Listens on a free port until it is closed."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str]] = []
        """Titles and bodies, in the order in which they came."""
        self.refuses = False
        self.refused = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", "0"))
                message: Any = json.loads(self.rfile.read(size))
                if receiver.refuses:
                    receiver.refused += 1
                else:
                    receiver.taken.append((message["title"], message["message"]))
                self.send_response(REFUSED if receiver.refuses else OK)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._dead = socket.create_server(("127.0.0.1", 0))
        Thread(target=self._server.serve_forever, name="alert-receiver", daemon=True).start()

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self._server.server_address[1]}/alerts"

    @property
    def dead_url(self) -> str:
        """Another server, which lets everybody connect and never answers."""
        return f"json://127.0.0.1:{self._dead.getsockname()[1]}/alerts"

    def take(self) -> list[tuple[str, str]]:
        """What came since the last call."""
        taken, self.taken = self.taken, []
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._dead.close()
