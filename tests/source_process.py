"""`Source`: starts `tests.source` as a process of its own and asks it what it saw.

The process ends with this object, or with the process that made it, whichever comes first.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.source import Connection, overlaps

ROOT = Path(__file__).resolve().parent.parent
ANSWER_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Streaming:
    """How many live connections were sent a record, and when the last of them was sent its first."""

    feeds: int
    last_began_at: float


class Source:
    """A running source. Use it as a context manager."""

    def __init__(self, *, rate: float = 20.0, pad: int = 40, age_s: float = 0.0) -> None:
        """``age_s``: how long ago the first record of each feed was due."""
        options = {"rate": rate, "pad": pad, "age": age_s}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.source", *(f"--{name}={one}" for name, one in options.items())],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        ports = json.loads(self._process.stdout.readline())
        self.rate = rate
        self.port: int = ports["port"]
        self.pid: int = ports["pid"]
        self._control = socket.create_connection(("127.0.0.1", ports["control"]), timeout=ANSWER_TIMEOUT_S)
        self._answers = self._control.makefile("rb")

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._answers.close()
        self._control.close()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=5)
        self._process.stdout.close()

    def _ask(self, op: str, **fields: Any) -> Any:
        self._control.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")
        answer = self._answers.readline()
        if not answer:
            raise ConnectionError(f"the source died while asked to {op!r}; see its standard error")
        return json.loads(answer)

    # -- what it saw ---------------------------------------------------------------------------------

    def connections(self, *, since: int = 0) -> list[Connection]:
        """The log of connections, from id ``since`` on, oldest first."""
        return [Connection(**fields) for fields in self._ask("connections", since=since)]

    def live(self) -> dict[str, Connection]:
        """The newest live connection of each feed."""
        return {c.feed: c for c in self.connections() if c.is_live()}

    def streaming(self) -> Streaming:
        """In short, for thousands of feeds that are asked after often."""
        return Streaming(**self._ask("streaming"))

    def sent(self) -> dict[str, int]:
        """The last sequence number ever sent, by feed."""
        sent: dict[str, int] = self._ask("sent")
        return sent

    def overlaps(self, *, since: int = 0, ignored: Sequence[int] = ()) -> list[tuple[Connection, Connection]]:
        return overlaps(self.connections(since=since), ignored=ignored)

    def cpu_s(self) -> float:
        used: float = self._ask("usage")["cpu_s"]
        return used

    # -- what it does --------------------------------------------------------------------------------

    def behave(self, mode: str, feeds: Sequence[str] | None = None, *, count: int = 0) -> None:
        """Set the mode of these feeds, or of all: stream, silent, or spoiled with a bad line after ``count``."""
        self._ask("mode", mode=mode, feeds=None if feeds is None else list(feeds), count=count)

    def cut(self, feeds: Sequence[str] | None = None) -> None:
        """Reset the live connections of these feeds, or all."""
        self._ask("cut", feeds=None if feeds is None else list(feeds))
