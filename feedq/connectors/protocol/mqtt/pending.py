"""Messages of an MQTT session that wait for their acknowledgement, and those that come again.

A broker sends again, flagged as a duplicate, what was not acknowledged, under the packet identifier that it
had. An identifier alone says little: once acknowledged, the broker uses it for another message, and whether
an acknowledgement arrived before a connection broke nobody knows. There are two cases in which a message *is*
known again:

* it is still pending on this very connection: its identifier cannot be in use for anything else;
* it was committed after its connection had ended, so that it was never acknowledged. As long as the session is
  the same, its identifier is still its own. That is so within one tenure, on the memory of which this is kept:
  no other worker can have acknowledged it meanwhile. A digest of topic and payload guards against a broker that
  gives up messages by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any

from feedq.connectors.protocol.mqtt.mqtt_link import Message


class Seen(Enum):
    """What is known of a message that arrives."""

    NEVER = auto()
    PENDING = auto()
    COMMITTED = auto()
    """It has landed, and only wants to be acknowledged."""


class PendingMessages:
    """What one connection has given and not acknowledged, and what earlier ones of the tenure have left."""

    def __init__(self, memory: dict[str, Any]) -> None:
        self._pending: dict[int, int] = {}
        # At most as many as there are identifiers, 65,535.
        self._committed: dict[int, int] = memory.setdefault("mqtt_committed", {})

    def forget(self) -> None:
        """The session is a new one: no identifier of the old one means anything."""
        self._committed.clear()

    def seen(self, message: Message) -> Seen:
        """Asked once, when a message arrives."""
        left = self._committed.pop(message.number, None)
        if not message.is_again:
            return Seen.NEVER
        if message.number in self._pending:
            return Seen.PENDING
        return Seen.COMMITTED if left == _digest(message) else Seen.NEVER

    def add(self, message: Message) -> int:
        """A message is given to the consumer; its number."""
        self._pending[message.number] = _digest(message)
        return message.number

    def acknowledge(self, numbers: Iterable[int], send: Callable[[int], None]) -> None:
        """Messages were committed, and can be acknowledged."""
        for number in numbers:
            # A broker that gave one number to two messages has broken the rules, and gets one answer.
            if self._pending.pop(number, None) is not None:
                send(number)

    def keep(self, numbers: Iterable[int]) -> None:
        """Messages were committed, and their connection has ended."""
        for number in numbers:
            if (digest := self._pending.pop(number, None)) is not None:
                self._committed[number] = digest


def _digest(message: Message) -> int:
    return hash((message.topic, message.payload))
