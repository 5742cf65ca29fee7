"""Reading from a JetStream consumer: pulls go out, messages come in and become batches, acknowledgements go back.

Messages are pulled by requests: each names how many messages and bytes may be sent in answer. Two are under way at
most, so that the source never waits for a round trip; they are answered one after the other. A request ends when
all it asked for has come, or with a status message that goes to an inbox of its own. While it waits the server
sends heartbeats: so a consumer that is gone is told from one that has nothing.

Invariants, for one connection:

* messages are given in the order of their sequence, each once, none at or before the cursor;
* an answer that went missing on the way is noticed by the consumer's own count, and ends the connection;
* a message is acknowledged after its batch was committed, or because it had landed before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

import orjson

from feedq.connectors.base import Context
from feedq.connectors.protocol.nats_client import DESCRIPTION, STATUS, NatsClient, NatsMessage
from feedq.connectors.protocol.nats_consumer import NANOSECONDS, Retention, Start, StreamFacts
from feedq.connectors.records.messages import (
    Acknowledgements,
    MessageOptions,
    TakenMessages,
    enclose,
    oversize,
)
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.model import JSON, Batch
from feedq.telemetry import SOURCE_MISSED, LogEvent, log

EXPIRES_S: Final = 60.0
"""A request that finds nothing ends after this and is made anew."""
HEARTBEAT_S_MAX: Final = 10.0
HEARTBEATS_MISSED: Final = 3
HEARTBEAT: Final = "100"
ENDED: Final = {"404", "408"}
CONFLICT: Final = "409"
_STILL_THERE: Final = ("maxbytes", "batch completed")
"""In a conflict that ends the request and nothing else."""
MESSAGE_BYTES: Final = 512
"""What a message takes beside its payload, so that many small ones are bounded too."""
SAID_CHARACTERS_MAX: Final = 300
AT_NS_MAX: Final = 2**63
"""Of a time as servers count it: in the year 2262."""
_ACK: Final = "$JS.ACK."

logger = log(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerLost:
    """The consumer is of no more use; what the server said."""

    status: str
    said: str


class Pulls:
    """The requests of one consumer."""

    def __init__(
        self,
        publish: Callable[[str, bytes, str], None],
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

    def ask(self) -> None:
        """See to it that at least half of the messages that may be asked for are."""
        if 2 * self.asked <= self._messages:
            self._number += 1
            reply = f"{self.inbox}.{self._number}"
            wanted = self._messages - self.asked
            self._left[reply] = wanted
            self._untouched.add(reply)
            self._publish(self._subject, orjson.dumps({**self._template, "batch": wanted}), reply)

    def arrived(self) -> None:
        """A message came; the oldest request is served first."""
        for reply, left in self._left.items():
            self._untouched.discard(reply)
            if left > 1:
                self._left[reply] = left - 1
            else:
                del self._left[reply]
            return

    def handle(self, status: NatsMessage) -> ConsumerLost | None:
        """What a status message means for the requests; the trouble if it is more than the end of one."""
        headers = status.headers
        code, said = headers.get(STATUS, ""), headers.get(DESCRIPTION, "")
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


class Received(NamedTuple):
    """What a message's reply subject says of it."""

    seq: int
    """Of the stream."""
    delivery: int
    """Counted by the consumer."""
    at_ns: int

    @classmethod
    def of(cls, reply: str) -> Received:
        tokens = reply.split(".")
        # Later servers may put a domain and the hash of an account before the rest.
        first = 5 if len(tokens) == 9 else 7
        numbers = tokens[first : first + 3]
        if len(numbers) < 3 or not all(number.isdigit() and len(number) < 20 for number in numbers):
            raise ValueError("a message that does not say which of the stream it is")
        return cls(*map(int, numbers))


class Reading:
    """One consumer being read."""

    def __init__(
        self,
        client: NatsClient,
        pulls: Pulls,
        *,
        stream: StreamFacts,
        start: Start,
        where: str,
        subjects: Sequence[str],
        options: MessageOptions,
        context: Context,
        held_bytes_max: int,
    ) -> None:
        """``held_bytes_max``: what all that was asked for may come to."""
        self._client = client
        self._pulls = pulls
        self._created = stream.created
        self._where = where
        self._options = options
        self._context = context
        self._held_bytes_max = held_bytes_max
        self._landed = self._seq = start.landed
        self._expected = start.landed + 1 if start.landed and start.gap is None else None
        """The sequence that comes next, if that is known."""
        self._has_no_holes = stream.keeps_each and not subjects
        """Whether a hole in the sequence means that something is missing: it was discarded; or it was
        acknowledged, and the sink has lost it."""
        self._acknowledges_each = stream.retention is Retention.WORK_QUEUE
        self._deliveries = 0
        self._acknowledgements: Acknowledgements[str] = Acknowledgements(
            self._acknowledge, wanted=not context.trial
        )
        self._heard_at = asyncio.get_running_loop().time()

    # -- in ------------------------------------------------------------------------------------------------

    def receive(self, message: NatsMessage) -> None:
        """Called for whatever the consumer sends."""
        self._heard_at = asyncio.get_running_loop().time()
        if message.reply.startswith(_ACK):
            self._pulls.arrived()
            self._client.inbox.put(message, size=len(message.payload) + MESSAGE_BYTES)
            if self._client.inbox.size > self._held_bytes_max + self._options.max_record_bytes:
                self._client.fail(SourceUnavailable(f"{self._where}: more was received than asked for"))
        else:
            trouble = self._pulls.handle(message)
            if trouble is not None:
                self._client.fail(self._taken_away(trouble))
        if not self._client.inbox.is_full:
            self._pulls.ask()

    async def next(self) -> list[NatsMessage]:
        """Everything that has arrived, at least one message."""
        loop = asyncio.get_running_loop()
        if not self._pulls.asked:
            # While nothing was asked for it was we who did not listen.
            self._heard_at = loop.time()
        self._pulls.ask()
        while True:
            try:
                async with asyncio.timeout_at(self._heard_at + self._pulls.silence_s):
                    return await self._client.inbox.take()
            except TimeoutError:
                if loop.time() - self._heard_at >= self._pulls.silence_s:
                    raise self._silent() from None

    def _silent(self) -> SourceUnavailable:
        said = f"{self._where}: connected, but no heartbeat for {self._pulls.silence_s:g} s"
        # A consumer that is gone does not say so to a request that comes too late.
        return SourceSilent(said) if self._options.idle_timeout_s else SourceUnavailable(said)

    def _taken_away(self, trouble: ConsumerLost) -> SourceUnavailable | FeedMisconfigured:
        said = trouble.said.lower()[:SAID_CHARACTERS_MAX] or f"status {trouble.status}"
        if "maxbytes" in said.replace(" ", ""):
            return FeedMisconfigured(
                f"{self._where}: the next message is larger than any request has room for; "
                "raise source.max_record_bytes"
            )
        hint = "; has this feed moved to another worker?" if "deleted" in said else ""
        return SourceUnavailable(f"{self._where}: the consumer is gone: {said}{hint}")

    # -- out -----------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> JSON:
        return {"seq": self._seq, "created": self._created}

    def take(self, messages: Sequence[NatsMessage]) -> TakenMessages[str]:
        """The records of messages, up to one that is too large."""
        taken: TakenMessages[str] = TakenMessages()
        for message in messages:
            try:
                received = Received.of(message.reply)
            except ValueError as error:
                raise SourceUnavailable(f"{self._where}: the server sent {error}") from None
            self._check_delivery(received)
            if received.seq <= self._seq:
                # Delivered again; or, in a work queue, landed and not acknowledged by whoever died then.
                if received.seq <= self._landed:
                    self._acknowledge([message.reply])
                continue
            if message.size > self._options.max_record_bytes:
                taken.failure = oversize(self._where, self._options, size=message.size, after=self.cursor)
                break
            self._check_gap(received)
            self._seq = received.seq
            if self._options.envelope:
                taken.records.append(enclose(about(message, received), message.payload))
            elif message.payload:
                taken.records.append(message.payload)
            taken.receipts.append(message.reply)
        return taken

    def batch(self, taken: TakenMessages[str]) -> Batch | None:
        return self._acknowledgements.batch(taken, cursor=self.cursor, received_at=self._context.clock.now())

    def _check_delivery(self, received: Received) -> None:
        self._deliveries += 1
        if received.delivery != self._deliveries:
            raise SourceUnavailable(
                f"{self._where}: delivery {self._deliveries} went missing between the server and us"
            )

    def _check_gap(self, received: Received) -> None:
        if self._expected is not None and received.seq != self._expected and self._has_no_holes:
            SOURCE_MISSED.inc(received.seq - self._expected)
            logger.warning(
                LogEvent.SOURCE_GAP,
                feed=self._context.feed,
                source=self._where,
                detail=f"message {self._expected - 1} is followed by {received.seq}",
            )
        self._expected = received.seq + 1

    def _acknowledge(self, replies: Sequence[str]) -> None:
        # The last one stands for all before it, unless each must have its own.
        self._client.acknowledge(replies if self._acknowledges_each else replies[-1:])


def about(message: NatsMessage, received: Received) -> dict[str, JSON]:
    """What an envelope says of a message."""
    at = datetime.fromtimestamp(min(received.at_ns, AT_NS_MAX) / NANOSECONDS, UTC)
    said: dict[str, JSON] = {"subject": message.subject, "seq": received.seq, "time": at.isoformat()}
    if message.raw_headers:
        said["headers"] = dict(message.headers)
    return said
