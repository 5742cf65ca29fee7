"""Reading from a consumer: messages in, batches out, acknowledgements back.

Invariants, for one connection:

* messages are given in the order of their sequence, each once, none at or before the cursor;
* an answer that went missing on the way is noticed by the consumer's own count, and ends the connection;
* a message is acknowledged after its batch was committed, or because it had landed before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from nats.aio.msg import Msg
from nats.errors import Error

from feedq.connectors.base import Context
from feedq.connectors.protocol.nats.nats_link import NatsLink
from feedq.connectors.protocol.nats.pulls import NANOSECONDS, ConsumerLost, Pulls
from feedq.connectors.records.messages import MessageOptions, batch_of, enclose, oversize
from feedq.errors import FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.model import JSON, Batch
from feedq.telemetry import SOURCE_MISSED, LogEvent, log

MESSAGE_BYTES = 512
"""What a message takes beside its payload, so that many small ones are bounded too."""
UNSENT_ACKNOWLEDGEMENTS_MAX = 2**18
"""Bounds what a server that sends and does not read can make us keep."""
SAID_CHARACTERS_MAX = 300
AT_NS_MAX = 2**63
"""Of a time as servers count it: in the year 2262."""
_ACK = "$JS.ACK."

logger = log(__name__)


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


@dataclass(frozen=True, slots=True)
class Consumed:
    """What there is to know of the stream and the consumer."""

    where: str
    created: str
    landed: int
    """Messages up to this sequence have landed."""
    expected: int | None
    """The sequence that comes next, if that is known."""
    has_no_holes: bool
    """Whether a hole in the sequence means that something is missing: it was discarded; or it was acknowledged,
    and the sink has lost it."""
    acknowledges_each: bool
    """Whether each message needs its own acknowledgement."""
    acknowledges: bool


@dataclass(slots=True)
class NatsBatch:
    """What messages come to."""

    records: list[bytes] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    failure: FeedMisconfigured | None = None


class Reading:
    """One consumer being read."""

    def __init__(
        self,
        link: NatsLink,
        pulls: Pulls,
        consumed: Consumed,
        *,
        options: MessageOptions,
        context: Context,
        held_bytes_max: int,
    ) -> None:
        """``held_bytes_max``: what all that was asked for may come to."""
        self._link = link
        self._pulls = pulls
        self._consumed = consumed
        self._options = options
        self._context = context
        self._held_bytes_max = held_bytes_max
        self._seq = consumed.landed
        self._expected = consumed.expected
        self._deliveries = 0
        self._uncommitted = 0
        """Batches that were given and are not committed."""
        self._waiting: list[str] = []
        """Messages that are no records, to be acknowledged after what came before them."""
        self._heard_at = asyncio.get_running_loop().time()
        self._acks: list[str] = []
        self._acks_wanted = asyncio.Event()

    # -- in ------------------------------------------------------------------------------------------------

    async def receive(self, message: Msg) -> None:
        """Called by the library for whatever the consumer sends."""
        self._heard_at = asyncio.get_running_loop().time()
        if message.reply.startswith(_ACK):
            self._pulls.arrived()
            self._link.inbox.put(message, size=len(message.data) + MESSAGE_BYTES)
            if self._link.inbox.size > self._held_bytes_max + self._options.max_record_bytes:
                self._link.fail(
                    SourceUnavailable(f"{self._consumed.where}: more was received than asked for")
                )
        else:
            trouble = self._pulls.heed(message)
            if trouble is not None:
                self._link.fail(self._taken_away(trouble))
        if not self._link.inbox.is_full:
            await self._pulls.ask()

    async def next(self) -> list[Msg]:
        """Everything that has arrived, at least one message."""
        loop = asyncio.get_running_loop()
        if not self._pulls.asked:
            # While nothing was asked for it was we who did not listen.
            self._heard_at = loop.time()
        await self._pulls.ask()
        while True:
            try:
                async with asyncio.timeout_at(self._heard_at + self._pulls.silence_s):
                    return await self._link.inbox.take()
            except TimeoutError:
                if loop.time() - self._heard_at >= self._pulls.silence_s:
                    raise self._silent() from None

    def _silent(self) -> SourceUnavailable:
        said = f"{self._consumed.where}: connected, but no heartbeat for {self._pulls.silence_s:g} s"
        # A consumer that is gone does not say so to a request that comes too late.
        return SourceSilent(said) if self._options.idle_timeout_s else SourceUnavailable(said)

    def _taken_away(self, trouble: ConsumerLost) -> SourceUnavailable | FeedMisconfigured:
        said = trouble.said.lower()[:SAID_CHARACTERS_MAX] or f"status {trouble.status}"
        if "maxbytes" in said.replace(" ", ""):
            return FeedMisconfigured(
                f"{self._consumed.where}: the next message is larger than any request has room for; "
                "raise source.max_record_bytes"
            )
        hint = "; has this feed moved to another worker?" if "deleted" in said else ""
        return SourceUnavailable(f"{self._consumed.where}: the consumer is gone: {said}{hint}")

    # -- out -----------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> JSON:
        return {"seq": self._seq, "created": self._consumed.created}

    def take(self, messages: Sequence[Msg]) -> NatsBatch:
        """The records of messages, up to one that is too large."""
        taken = NatsBatch()
        for message in messages:
            try:
                received = Received.of(message.reply)
            except ValueError as error:
                raise SourceUnavailable(f"{self._consumed.where}: the server sent {error}") from None
            self._check_delivery(received)
            if received.seq <= self._seq:
                # Delivered again; or, in a work queue, landed and not acknowledged by whoever died then.
                if received.seq <= self._consumed.landed:
                    self._send_soon([message.reply])
                continue
            if len(message.data) > self._options.max_record_bytes:
                where, size = self._consumed.where, self._link.size_of(message)
                taken.failure = oversize(where, self._options, size=size, after=self.cursor)
                break
            self._check_gap(received)
            self._seq = received.seq
            if self._options.envelope:
                taken.records.append(enclose(about(message, received), message.data))
            elif message.data:
                taken.records.append(message.data)
            taken.replies.append(message.reply)
        if not taken.records:
            self._acknowledge_in_turn(taken.replies)
        return taken

    def batch(self, taken: NatsBatch) -> Batch:
        replies, self._waiting = [*self._waiting, *taken.replies], []
        on_committed = None
        if self._consumed.acknowledges:
            self._uncommitted += 1
            on_committed = partial(self._committed, replies)
        return batch_of(
            taken.records,
            cursor=self.cursor,
            received_at=self._context.clock.now(),
            on_committed=on_committed,
        )

    def _check_delivery(self, received: Received) -> None:
        self._deliveries += 1
        if received.delivery != self._deliveries:
            raise SourceUnavailable(
                f"{self._consumed.where}: delivery {self._deliveries} went missing between the server and us"
            )

    def _check_gap(self, received: Received) -> None:
        if self._expected is not None and received.seq != self._expected and self._consumed.has_no_holes:
            SOURCE_MISSED.inc(received.seq - self._expected)
            logger.warning(
                LogEvent.SOURCE_GAP,
                feed=self._context.feed,
                source=self._consumed.where,
                detail=f"message {self._expected - 1} is followed by {received.seq}",
            )
        self._expected = received.seq + 1

    # -- back ----------------------------------------------------------------------------------------------

    def _committed(self, replies: Sequence[str]) -> None:
        self._uncommitted -= 1
        self._send_soon(replies)
        self._acknowledge_in_turn(())

    def _acknowledge_in_turn(self, replies: Sequence[str]) -> None:
        """Messages that are no records are acknowledged once all before them are."""
        self._waiting += replies
        if not self._uncommitted and self._waiting and self._consumed.acknowledges:
            self._send_soon(self._waiting)
            self._waiting = []

    def _send_soon(self, replies: Sequence[str]) -> None:
        # The last one stands for all before it, unless each must have its own.
        self._acks += replies if self._consumed.acknowledges_each else replies[-1:]
        if len(self._acks) > UNSENT_ACKNOWLEDGEMENTS_MAX:
            self._link.fail(
                SourceUnavailable(f"{self._consumed.where}: the server does not read what it is answered")
            )
        self._acks_wanted.set()

    async def send_acknowledgements(self) -> None:
        """Runs beside the reading; what is committed after it ended comes again, and is known by its sequence."""
        while True:
            await self._acks_wanted.wait()
            self._acks_wanted.clear()
            acks, self._acks = self._acks, []
            # A connection that is lost says so to whoever reads.
            with suppress(Error, OSError):
                for reply in acks:
                    await self._link.client.publish(reply)


def about(message: Msg, received: Received) -> dict[str, JSON]:
    """What an envelope says of a message."""
    at = datetime.fromtimestamp(min(received.at_ns, AT_NS_MAX) / NANOSECONDS, UTC)
    said: dict[str, JSON] = {"subject": message.subject, "seq": received.seq, "time": at.isoformat()}
    if message.headers:
        said["headers"] = {str(name): value for name, value in message.headers.items()}
    return said
