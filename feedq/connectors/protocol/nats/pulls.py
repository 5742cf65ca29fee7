"""Asking a consumer for messages, a bounded number ahead.

Messages are pulled by requests: each names how many messages and bytes may be sent in answer. Two are under way at
most, so that the source never waits for a round trip; they are answered one after the other. A request ends when
all it asked for has come, or with a status message that goes to an inbox of its own. While it waits the server
sends heartbeats: so a consumer that is gone is told from one that has nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import orjson
from nats.aio.msg import Msg

EXPIRES_S: Final = 60.0
"""A request that finds nothing ends after this and is made anew."""
HEARTBEAT_S_MAX: Final = 10.0
HEARTBEATS_MISSED: Final = 3
NANOSECONDS: Final = 1_000_000_000

HEARTBEAT: Final = "100"
ENDED: Final = {"404", "408"}
CONFLICT: Final = "409"
_STILL_THERE: Final = ("maxbytes", "batch completed")
"""In a conflict that ends the request and nothing else."""


@dataclass(frozen=True, slots=True)
class ConsumerLost:
    """The consumer is of no more use; what the server said."""

    status: str
    said: str


class Pulls:
    """The requests of one consumer."""

    def __init__(
        self,
        publish: Callable[[str, bytes, str], Awaitable[None]],
        *,
        subject: str,
        inbox: str,
        messages: int,
        bytes_max: int,
        heartbeat_s: float,
    ) -> None:
        """``inbox`` is a prefix: each request adds its number."""
        self._publish = publish
        self._subject = subject
        self.inbox = inbox
        self._messages = messages
        self.silence_s = HEARTBEATS_MISSED * heartbeat_s
        """When nothing has come for this long, the consumer is gone or the connection dead."""
        self._template = {
            "max_bytes": bytes_max,
            "expires": int(EXPIRES_S * NANOSECONDS),
            "idle_heartbeat": int(heartbeat_s * NANOSECONDS),
        }
        self._left: dict[str, int] = {}
        """Of each request under way, in the order in which they were made, how many messages are to come."""
        self._untouched: set[str] = set()
        """Those of them to which nothing has come."""
        self._number = 0

    @property
    def asked(self) -> int:
        """How many messages may come."""
        return sum(self._left.values())

    async def ask(self) -> None:
        """See to it that at least half of the messages that may be asked for are."""
        if 2 * self.asked <= self._messages:
            self._number += 1
            reply = f"{self.inbox}.{self._number}"
            wanted = self._messages - self.asked
            self._left[reply] = wanted
            self._untouched.add(reply)
            await self._publish(self._subject, orjson.dumps({**self._template, "batch": wanted}), reply)

    def arrived(self) -> None:
        """A message came; the oldest request is served first."""
        for reply, left in self._left.items():
            self._untouched.discard(reply)
            if left > 1:
                self._left[reply] = left - 1
            else:
                del self._left[reply]
            return

    def heed(self, status: Msg) -> ConsumerLost | None:
        """What a status message means for the requests; the trouble if it is more than the end of one."""
        headers = status.headers or {}
        code, said = headers.get("Status", ""), headers.get("Description", "")
        if code == HEARTBEAT:
            return None
        if code in ENDED or (code == CONFLICT and any(text in said.lower() for text in _STILL_THERE)):
            self._left.pop(status.subject, None)
            is_untouched = status.subject in self._untouched
            self._untouched.discard(status.subject)
            # With all of its room left, a message did not fit into the request: it fits into none.
            is_too_large = is_untouched and "exceeds maxbytes" in said.lower()
            return ConsumerLost(code, said) if is_too_large else None
        return ConsumerLost(code, said)
