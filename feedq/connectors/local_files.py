"""Reads the files that feeds name, those of secrets and of TLS, on threads beside the event loop.

A file may lie where nothing answers, such as on a network mount whose server is gone. So a thread reads what is
asked of one directory, one thing after the other, and a directory that does not answer delays only the feeds
that need it. Each of these is told which one it is.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final, TypeVar

from feedq.errors import SourceUnavailable

ANSWER_S: Final = 5.0
"""A directory that has not answered for so long counts as away: a network mount may take a second."""
THREADS_MAX: Final = 64
"""Directories that are read at a time. With as many of them away, those of all other feeds would be too."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Directory:
    """What is to be read in one directory."""

    name: str
    waiting: deque[tuple[Future[Any], Callable[[], Any]]] = field(default_factory=deque)
    since: float = field(default_factory=monotonic)
    """When it was first asked for, or last answered."""


class FileReader:
    """Threads that read files, each in one directory at a time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._directories: dict[str, _Directory] = {}
        """Those in which there is something to read."""
        self._ready: deque[_Directory] = deque()
        """Those of them that no thread has begun with."""
        self._threads = 0

    async def read(self, paths: Iterable[str], read: Callable[[], T]) -> T:
        """Have ``read`` called on a thread; it reads these files. Raises what it raises, and `SourceUnavailable`
        when their directory does not answer."""
        name = ", ".join(sorted({os.path.dirname(path) for path in paths}))
        if not name:
            return await asyncio.to_thread(read)
        future: Future[T] = Future()
        directory = self._ask(name, future, read)
        answer = asyncio.wrap_future(future)
        try:
            while not answer.done():
                await asyncio.wait([answer], timeout=_left_s(directory))
                if not future.done() and _left_s(directory) <= 0:
                    raise _away(name)
            return answer.result()
        finally:
            answer.cancel()

    def _ask(self, name: str, future: Future[T], read: Callable[[], T]) -> _Directory:
        with self._lock:
            directory = self._directories.get(name)
            if directory is None:
                if self._threads < THREADS_MAX:
                    Thread(target=self._serve, name="feedq-files", daemon=True).start()
                    self._threads += 1
                directory = self._directories[name] = _Directory(name)
                self._ready.append(directory)
            elif _left_s(directory) <= 0:
                raise _away(name)  # or what feeds ask of it again and again would gather
            directory.waiting.append((future, read))
            return directory

    def _serve(self) -> None:
        while (directory := self._begin()) is not None:
            while (asked := self._next(directory)) is not None:
                future, read = asked
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(read())
                    except BaseException as error:  # noqa: BLE001 -- whoever asked for it is told
                        future.set_exception(error)

    def _begin(self) -> _Directory | None:
        with self._lock:
            if self._ready:
                return self._ready.popleft()
            self._threads -= 1
            return None

    def _next(self, directory: _Directory) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._lock:
            directory.since = monotonic()
            if directory.waiting:
                return directory.waiting.popleft()
            del self._directories[directory.name]
            return None


FILES: Final = FileReader()
"""That of this process."""


def _left_s(directory: _Directory) -> float:
    return directory.since + ANSWER_S - monotonic()


def _away(name: str) -> SourceUnavailable:
    return SourceUnavailable(f"files in {name} cannot be read on this worker: no answer for {ANSWER_S:g} s")
