"""Senders: a process that sends prepared bytes as fast as a socket takes them, and so holds no feed back.

Every kind sends the same records, those of `tests.source.record`, in the dress of its protocol:

========== ======================================================================= =======================
kind       what a client gets                                                      url
========== ======================================================================= =======================
tcp        lines, after it has sent one line of its own (a hello)                  ``tcp://127.0.0.1:N``
websocket  a handshake, then one text message a record, in one frame each          ``ws://127.0.0.1:N/``
sse        ``id: 17`` and ``data: {…}`` a record, in chunks of ``--chunk-bytes``   ``http://127.0.0.1:N/``
ndjson     lines, in chunks of ``--chunk-bytes``                                   ``http://127.0.0.1:N/``
========== ======================================================================= =======================

Every connection gets everything from the first record on, whatever cursor it names, and stays open after the last:
it answers no pings. By hand, until its standard input ends (``tail -f /dev/null | python -m …`` keeps it)::

    python -m bench.senders websocket --count 1000000 --pad 105

It prints one line of JSON with its ``url`` and then one for each connection, when its first record goes out:
``{"began_at": monotonic seconds}``. Programs use `Sender`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from tests.source import record

ROOT = Path(__file__).resolve().parent.parent
KINDS: Final = {"tcp": "tcp", "websocket": "ws", "sse": "http", "ndjson": "http"}
"""Kinds of senders, and the scheme of their URLs."""
FEED = "fast/feed"
REQUEST_BYTES_MAX = 64 * 1024
TIMEOUT_S = 600.0
_ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Sender:
    """A sender's process. Use it as a context manager."""

    def __init__(
        self, kind: str, *, count: int = 0, pad: int = 0, feed: str = FEED, file: Path | None = None
    ) -> None:
        """With ``file``, its bytes are what a connection gets, instead of so many records."""
        what = ["--file", str(file)] if file is not None else []
        what += ["--count", str(count), "--pad", str(pad), "--feed", feed]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.senders", kind, *what],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.url: str = self._read()["url"]

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()

    def began_at(self) -> float:
        """When the first record of the next connection went out, by ``time.monotonic()``; waits for it."""
        began: float = self._read()["began_at"]
        return began

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConnectionError("the sender died; see its standard error")
        read: dict[str, Any] = json.loads(line)
        return read


# -- what is sent ------------------------------------------------------------------------------------------


def dressed(kind: str, lines: Iterable[bytes], *, chunk_bytes: int) -> Iterator[bytes]:
    """The bytes of one connection, its greeting left out, in pieces."""
    match kind:
        case "tcp":
            yield from lines
        case "websocket":
            yield from map(_frame, lines)
        case "sse":
            events = (b"id: %d\ndata: %b\n" % (number, line) for number, line in enumerate(lines, start=1))
            yield from map(_chunk, _gathered(events, chunk_bytes))
        case _:
            yield from map(_chunk, _gathered(lines, chunk_bytes))


def _frame(line: bytes) -> bytes:
    payload = line[:-1]
    if len(payload) < 126:
        return bytes((0x81, len(payload))) + payload
    assert len(payload) < 2**16
    return struct.pack("!BBH", 0x81, 126, len(payload)) + payload


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _gathered(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Whole pieces, joined until ``size`` bytes are there: what a server that flushes now and then sends."""
    held: list[bytes] = []
    length = 0
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        if length >= size:
            yield b"".join(held)
            held, length = [], 0
    yield from (b"".join(held),) if held else ()


# -- the process ---------------------------------------------------------------------------------------------


def greeting(kind: str, request: bytes) -> bytes:
    """What goes before the records."""
    if kind == "tcp":
        return b""
    if kind == "websocket":
        headers = dict(line.lower().split(b": ", 1) for line in request.split(b"\r\n")[1:] if b": " in line)
        # The key is the one value whose case counts, so it is looked up in the request as it came.
        at = request.lower().index(headers[b"sec-websocket-key"])
        key = request[at : at + len(headers[b"sec-websocket-key"])]
        accept = base64.b64encode(hashlib.sha1(key + _ACCEPT_GUID).digest())
        return (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept
        )
    media = b"text/event-stream" if kind == "sse" else b"application/x-ndjson"
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % media


def _serve(kind: str, connection: socket.socket, path: str) -> None:
    ends = b"\n" if kind == "tcp" else b"\r\n\r\n"
    with connection, open(path, "rb") as content:
        connection.settimeout(TIMEOUT_S)
        request = b""
        while ends not in request and len(request) < REQUEST_BYTES_MAX:
            received = connection.recv(4096)
            if not received:
                return
            request += received
        connection.sendall(greeting(kind, request))
        _say(began_at=time.monotonic())
        try:
            # From the page cache into the socket: costs this process next to nothing.
            connection.sendfile(content)
            while connection.recv(4096):
                pass
        except OSError:
            pass  # the client has left


def _say(**fields: float | str) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _accept(kind: str, listener: socket.socket, path: str) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(kind, connection, path), daemon=True).start()


def _prepare(kind: str, file: IO[bytes], *, feed: str, count: int, pad: int, chunk_bytes: int) -> None:
    begin = 1_700_000_000.0
    lines = [record(feed, n, at=begin + n / 1_000_000, pad=pad) for n in range(1, count + 1)]
    file.writelines(dressed(kind, lines, chunk_bytes=chunk_bytes))
    file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.senders", description="Sends records as fast as it can."
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=1_000_000, help="records")
    parser.add_argument(
        "--pad", type=int, default=105, help="bytes of padding in a record; 105 make 170-byte lines"
    )
    parser.add_argument("--file", help="send these bytes instead of records")
    parser.add_argument("--feed", default=FEED, help="name of the feed in each record")
    parser.add_argument("--chunk-bytes", type=int, default=64 * 1024, help="least size of a chunk, for HTTP")
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0 is any free port")
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile() as file, socket.create_server(("127.0.0.1", options.port)) as listener:
        if options.file is None:
            _prepare(
                options.kind,
                file,
                feed=options.feed,
                count=options.count,
                pad=options.pad,
                chunk_bytes=options.chunk_bytes,
            )
        path = options.file or file.name
        threading.Thread(target=_accept, args=(options.kind, listener, path), daemon=True).start()
        slash = "" if options.kind == "tcp" else "/"
        _say(url=f"{KINDS[options.kind]}://127.0.0.1:{listener.getsockname()[1]}{slash}")
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
