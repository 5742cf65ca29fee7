"""The outbox sends messages on a thread of its own, so that nobody else ever waits for the broker.

A broker may refuse, be gone, or hang: accept what it is sent and never answer. What decides, places, elects or
renews therefore only puts its messages here. Every message is a hint that somebody else makes good (a
notification, a look-up, a time-out), so what cannot be sent in time is left out: counted, and said once in a
while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Condition, Thread
from time import monotonic
from typing import Generic, TypeVar

from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.metrics import MESSAGES_LEFT_OUT

WAITING_MAX = 100_000
"""Messages that wait: ten cold starts of ten thousand feeds. Beyond it they would only fill the memory."""
SAY_AGAIN_S = 30.0
"""The least time between two lines about messages that are left out."""

T = TypeVar("T")

logger = log(__name__)


class Outbox(Generic[T]):
    """Hands what was put into it to ``send``, all that waits at once. Thread-safe.

    ``send`` may block for as long as the time-outs of its sockets let it, and raise whatever kombu does.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Sequence[T]], object],
        *,
        stale_s: float,
        event: LogEvent,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """Make an outbox. What has waited for ``stale_s`` is not worth sending any more; ``event`` is what the
        log says of it."""
        self._send, self._stale_s, self._event = send, stale_s, event
        self._waiting_max = waiting_max
        self._waiting: deque[tuple[float, T]] = deque()
        self._changed = Condition()
        self._is_sending = False
        self._is_closed = False
        self._quiet_until = float("-inf")
        self._left_out = 0
        """Messages, since the log said so last."""
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def put(self, items: Iterable[T]) -> None:
        """Add messages, without ever waiting for the broker; what there is no room for is left out."""
        now, left_out = monotonic(), 0
        with self._changed:
            if self._is_closed:
                return
            if not self._thread.ident:
                self._thread.start()
            for item in items:
                if len(self._waiting) < self._waiting_max:
                    self._waiting.append((now, item))
                else:
                    left_out += 1
            self._changed.notify_all()
        if left_out:
            self._leave_out(left_out, "too many wait")

    def close(self, *, timeout_s: float) -> None:
        """Take no more, and wait a moment for what was put; what is left then ends with the process."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._is_sending, timeout_s)

    def _run(self) -> None:
        while (items := self._take()) is not None:
            try:
                if items:
                    self._send(items)
            except Exception as error:  # noqa: BLE001 -- kombu raises whatever its transport does
                self._leave_out(len(items), repr(error))

    def _take(self) -> list[T] | None:
        """Take all that waits and is not stale; None when there will be no more."""
        with self._changed:
            self._is_sending = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if not self._waiting:
                return None
            oldest = monotonic() - self._stale_s
            items = [item for put_at, item in self._waiting if put_at >= oldest]
            stale = len(self._waiting) - len(items)
            self._waiting.clear()
            self._is_sending = True
        if stale:
            self._leave_out(stale, f"they waited for more than {self._stale_s:g} s")
        return items

    def _leave_out(self, count: int, why: str) -> None:
        MESSAGES_LEFT_OUT.inc(count)
        with self._changed:
            self._left_out += count
            if monotonic() < self._quiet_until:
                return
            self._quiet_until = monotonic() + SAY_AGAIN_S
            unsent, self._left_out = self._left_out, 0
        logger.warning(self._event, error=why, unsent=unsent)
