"""What the API works on: the control database and the settings of the process that serves it; and what it refused.

Refusals are written into history, bounded: whoever guesses tokens asks without end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Self

from feedq.control.store.postgresql import PostgresStore
from feedq.control.store.tokens import TokenStore
from feedq.errors import Unavailable
from feedq.settings import Settings
from feedq.sinks.base import Sink, opened_sink
from feedq.verbs.wording import cut, printable

PER_MINUTE: Final = 600
"""More are counted, and told with the next one that is written."""
ASKED_CHARS_MAX: Final = 300


class RefusalLog:
    """Writes refusals of one process. Thread-safe."""

    def __init__(
        self, tokens: TokenStore, *, per_minute: int = PER_MINUTE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tokens, self._per_minute, self._clock = tokens, per_minute, clock
        self._lock = Lock()
        self._minute = 0
        self._written = 0
        self._left_out = 0

    def write(self, asked: str, status: int) -> None:
        """Whoever asked is refused in any case: that it cannot be written down changes nothing."""
        detail: dict[str, Any] = {"asked": cut(printable(asked), ASKED_CHARS_MAX), "status": status}
        with self._lock:
            minute = int(self._clock() // 60)
            if minute != self._minute:
                self._minute, self._written = minute, 0
            if self._written >= self._per_minute:
                self._left_out += 1
                return
            self._written += 1
            left_out, self._left_out = self._left_out, 0
        with suppress(Unavailable):
            self._tokens.refused(detail | ({"left_out": left_out} if left_out else {}))


@dataclass(frozen=True, slots=True)
class ApiBackend:
    """The store and the settings behind one application."""

    store: PostgresStore
    settings: Settings
    refusals: RefusalLog

    @classmethod
    def of(cls, store: PostgresStore, settings: Settings) -> Self:
        return cls(store, settings, RefusalLog(store.tokens))

    def open_sink(self, name: str) -> AbstractContextManager[Sink]:
        return opened_sink(self.settings, name, role="api")
