"""The consumer of a feed at a JetStream server: where it begins, what it may remember, and how it is read.

A consumer that outlives a worker remembers what was *delivered*; what landed is in the checkpoint. Together
they would lose data. Say 1 to 100 were delivered, 50 was committed, and the worker died: to its successor the
consumer delivers 101 at once, and 51 to 100 only when their time to be acknowledged is over. Once 101 is committed
the cursor is beyond them, and they count as landed. So each connection makes the consumer anew, right after the
cursor, and within a connection deliveries are in order; a second delivery is recognised by its sequence and
dropped.

How it is made depends on what keeps a message in the stream:

* *limits*: nothing there depends on a consumer, so it is kept in memory and vanishes when it is not used.
* *work queue*: a message is kept until it is acknowledged, and there can be only one consumer, which begins with
  what is left. What the cursor has passed is acknowledged and dropped.
* *interest*: a message is kept only while there is a consumer that wants it, so it would be lost while no worker
  runs the feed. Such a stream is refused.

An acknowledgement stands for all messages before it, but in a work queue, where each has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from feedq.connectors.base import BOUNDLESS, Context, Room, log_gap
from feedq.connectors.messages import SAID_CHARACTERS_MAX, Acknowledgements, enclose, oversize
from feedq.connectors.nats_client import DESCRIPTION, STATUS, JetStreamRefusal, NatsClient, NatsMessage
from feedq.core.model import JSON
from feedq.errors import EndReached, FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.records.batch import Batch

if TYPE_CHECKING:
    from feedq.connectors.nats import Deliver, NatsCursor, NatsOptions


NANOSECONDS: Final = 1_000_000_000
NOT_FOUND: Final = 404

ACK_WAIT_S: Final = 86_400.0
"""After this the server delivers again what was not acknowledged. That is of no use here, see above, and a sink
may be away for long."""
INACTIVE_S: Final = 300.0
"""A consumer vanishes when nobody has pulled for this long. A feed held back longer makes it anew."""


class Retention(StrEnum):
    """The policy by which a stream keeps its messages."""

    LIMITS = "limits"
    WORK_QUEUE = "workqueue"
    INTEREST = "interest"


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream as its server describes it."""

    name: str
    created: str
    """When it was made, which tells it from another stream of the same name."""
    retention: Retention
    first_seq: int
    last_seq: int
    keeps_each: bool = True
    """Whether messages stay when newer ones of their subject come."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> StreamFacts:
        """Raises `ValueError`, `KeyError` or `TypeError` for what is not an answer of JetStream."""
        config, state = answer["config"], answer["state"]
        made = answer.get("created")
        made_at = datetime.fromtimestamp(0, UTC) if made is None else datetime.fromisoformat(made)
        return cls(
            name=str(config["name"]),
            created=made_at.astimezone(UTC).isoformat(),
            retention=Retention(config.get("retention") or Retention.LIMITS),
            first_seq=int(state["first_seq"]),
            last_seq=int(state["last_seq"]),
            keeps_each=int(config.get("max_msgs_per_subject") or 0) <= 0,
        )


@dataclass(frozen=True, slots=True)
class Start:
    """The place in a stream to begin at."""

    policy: Literal["all", "new", "last", "by_start_sequence"]
    seq: int | None = None
    """With ``by_start_sequence``."""
    landed: int = 0
    """Messages up to this sequence have landed, whatever the server delivers."""
    gap: str | None = None
    """What was lost, for the log."""
    missed: int = 0
    """How many messages that is, if known."""


def choose_start(position: NatsCursor | None, stream: StreamFacts, deliver: Deliver) -> Start:
    """Where a consumer must begin so that everything after the cursor comes."""
    start = Start(deliver)
    if position is None:
        if deliver == "new" and stream.retention is not Retention.WORK_QUEUE:
            # By number, so that it says where it began: see `JetStream.make_consumer`.
            start = Start("by_start_sequence", seq=stream.last_seq + 1)
    elif position.created != stream.created or position.seq > stream.last_seq:
        gap = f"the stream was recreated or restored since {position.seq} was read; it is read from its beginning"
        start = Start("all", gap=gap)
    else:
        start = Start("by_start_sequence", seq=position.seq + 1, landed=position.seq)
        if stream.retention is Retention.LIMITS and stream.first_seq > position.seq + 1:
            gap = f"the oldest message left is {stream.first_seq}, the last one read was {position.seq}"
            start = replace(start, gap=gap, missed=stream.first_seq - position.seq - 1)
    if stream.retention is Retention.WORK_QUEUE:
        # Begins with what is left, and allows nothing else.
        return replace(start, policy="all", seq=None)
    return start


class JetStream:
    """Requests to a server's API about one stream. Raises what `NatsClient.ask` does."""

    def __init__(self, client: NatsClient, options: NatsOptions) -> None:
        self._client = client
        self._options = options
        self._stream = options.stream
        self.prefix = "$JS.API" if options.domain is None else f"$JS.{options.domain}.API"

    async def stream_facts(self) -> StreamFacts:
        return StreamFacts.of(await self._client.ask(f"{self.prefix}.STREAM.INFO.{self._stream}"))

    async def make_consumer(self, stream: StreamFacts, name: str, start: Start, *, trial: bool) -> str:
        """The name of a new consumer, made in the place of its predecessor."""
        name_of_trial = f"{name}-trial"
        if trial:
            name = name_of_trial
        elif stream.retention is Retention.WORK_QUEUE:
            # A trial's consumer would be in the way; that of the feed is not a trial's to delete.
            await self.delete_consumer(name_of_trial)
        if not trial:
            start = await self._go_on(name, start)
        await self.delete_consumer(name)
        config = consumer_config(name, stream, start, self._options, trial=trial)
        subject = f"{self.prefix}.CONSUMER.CREATE.{self._stream}.{name}"
        if config.get("filter_subject", ">") != ">":
            subject = f"{subject}.{config['filter_subject']}"
        await self._client.ask(subject, {"stream_name": self._stream, "config": config})
        return name

    async def delete_consumer(self, name: str) -> None:
        """Delete a consumer if there is one."""
        await self._ask_of(name, "DELETE")

    async def _go_on(self, old: str, start: Start) -> Start:
        """With ``deliver: new`` and nothing landed yet, begin where the predecessor did."""
        if start.landed or self._options.deliver != "new" or start.seq is None:
            return start
        acknowledged = await self._acknowledged(old)
        return start if acknowledged is None else replace(start, seq=min(start.seq, acknowledged + 1))

    async def _acknowledged(self, consumer: str) -> int | None:
        """Returns up to which sequence a consumer has everything acknowledged; None: there is no such consumer."""
        info = await self._ask_of(consumer, "INFO")
        if info is None:
            return None
        began = int(info["config"].get("opt_start_seq") or 1) - 1
        # Before the first acknowledgement older servers say 0 here, wherever the consumer began.
        return max(began, int((info.get("ack_floor") or {}).get("stream_seq", 0)))

    async def _ask_of(self, consumer: str, what: str) -> dict[str, Any] | None:
        try:
            return await self._client.ask(f"{self.prefix}.CONSUMER.{what}.{self._stream}.{consumer}")
        except JetStreamRefusal as refusal:
            if refusal.code != NOT_FOUND:
                raise
            return None


def consumer_config(
    name: str, stream: StreamFacts, start: Start, options: NatsOptions, *, trial: bool
) -> dict[str, JSON]:
    """A consumer as the API wants it described."""
    config: dict[str, JSON] = {
        "name": name,
        "description": "A feed of feedq",
        "deliver_policy": start.policy,
        "ack_policy": "explicit" if stream.retention is Retention.WORK_QUEUE else "all",
        "ack_wait": int(ACK_WAIT_S * NANOSECONDS),
        "max_ack_pending": options.max_unacknowledged,
        "inactive_threshold": int(INACTIVE_S * NANOSECONDS),
    }
    if start.seq is not None:
        config["opt_start_seq"] = start.seq
    if len(options.subjects) == 1:
        config["filter_subject"] = options.subjects[0]
    elif options.subjects:
        config["filter_subjects"] = list(options.subjects)
    if stream.retention is Retention.LIMITS:
        # Of no worth to anybody else. That of a work queue must be kept as safely as its stream.
        config |= {"mem_storage": True, "num_replicas": 1}
        if trial:
            config["ack_policy"] = "none"
            del config["max_ack_pending"]
    return config


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
FIRST_MESSAGES: Final = 64
"""What a feed asks for at first, and when nothing has come for long."""
LARGEST_BYTES: Final = 16 * 2**20
"""A request has room for a message of this size, whatever records may be: so that a large one can be told of."""
BESIDE_BYTES: Final = 16 * 1024
"""Room for subject, headers and reply beside the largest payload, when a request limits bytes."""
AVERAGED_MESSAGES: Final = 16
"""Of which the average size is taken."""
AT_NS_MAX: Final = 2**63
"""Of a time as servers count it: in the year 2262."""
_ACK: Final = "$JS.ACK."


@dataclass(slots=True)
class _Request:
    """A request under way."""

    left: int
    """How many messages are to come."""
    message_bytes: int
    """What each of them takes of the worker's memory until then."""
    is_untouched: bool = True
    """Whether nothing has come."""


class Pulls:
    """The requests of one consumer: each names how many messages and bytes may be sent in answer.

    Two are under way at most, so that the source never waits for a round trip; they are answered one after the
    other. A request ends when all it asked for has come, or with a status message that goes to an inbox of its
    own. While it waits the server sends heartbeats, so that a consumer that is gone differs from one that has
    nothing.

    What was asked for is on its way, and nobody can stop it: it takes room from the worker's memory until it has
    come, as much as messages have taken so far. So a feed asks for few messages at first, and for more while they
    come. In a full worker it asks for one.
    """

    def __init__(
        self,
        publish: Callable[[str, bytes, str], None],
        *,
        subject: str,
        inbox: str,
        messages: int,
        bytes_max: int,
        heartbeat_s: float,
        room: Room = BOUNDLESS,
    ) -> None:
        """``inbox`` is a prefix: each request adds its number. ``messages`` are under way at most."""
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
        self._room = room
        self._window = min(messages, FIRST_MESSAGES)
        """How many messages may be under way now."""
        self._message_bytes = float(2 * MESSAGE_BYTES)
        """What one takes, on average."""
        self._requests: dict[str, _Request] = {}
        """Those under way, in the order in which they were made."""
        self._number = 0

    @property
    def asked(self) -> int:
        """How many messages may come."""
        return sum(request.left for request in self._requests.values())

    def ask(self) -> None:
        """See to it that at least half of the messages that may be asked for are."""
        size = int(self._message_bytes)
        messages = max(1, min(self._window, self._room.left // size))
        if 2 * self.asked <= messages:
            self._number += 1
            reply = f"{self.inbox}.{self._number}"
            wanted = messages - self.asked
            self._requests[reply] = _Request(wanted, size)
            self._room.take(wanted * size)
            self._publish(self._subject, msgspec.json.encode({**self._template, "batch": wanted}), reply)

    def arrived(self, size: int = 0) -> None:
        """A message of this size came; the oldest request is served first."""
        self._message_bytes += (size + MESSAGE_BYTES - self._message_bytes) / AVERAGED_MESSAGES
        for reply, request in self._requests.items():
            self._room.give_back(request.message_bytes)
            request.left, request.is_untouched = request.left - 1, False
            if not request.left:
                del self._requests[reply]
                self._window = min(2 * self._window, self._messages)
            return

    def close(self) -> None:
        """Give back the room of all requests. May be repeated."""
        for reply in list(self._requests):
            self._end(reply)

    def _end(self, reply: str) -> _Request | None:
        request = self._requests.pop(reply, None)
        if request is not None:
            self._room.give_back(request.left * request.message_bytes)
        return request

    def handle(self, status: NatsMessage) -> str | None:
        """Takes a status message. Returns what it says if it means more than that a request has ended: then the
        consumer is of no more use."""
        headers = status.headers
        code, said = headers.get(STATUS, ""), headers.get(DESCRIPTION, "").lower()
        if code == HEARTBEAT:
            return None
        lost = said[:SAID_CHARACTERS_MAX] or f"status {code}"
        if code in ENDED or (code == CONFLICT and any(text in said for text in _STILL_THERE)):
            request = self._end(status.subject)
            is_untouched = request is not None and request.is_untouched
            if is_untouched:
                self._window = max(self._window // 2, min(self._messages, FIRST_MESSAGES))
            # With all of its room left, a message did not fit into the request: it fits into none.
            return lost if is_untouched and "exceeds maxbytes" in said else None
        return lost


class Received(NamedTuple):
    """A message's place in its stream, as its reply subject tells it."""

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
            raise ValueError("a message without its sequence in the stream")
        return cls(*map(int, numbers))


class Reading:
    """Reads a consumer: messages come in and become batches, acknowledgements go back.

    * Messages are given in the order of their sequence, each once, none at or before the cursor.
    * An answer that went missing on the way is noticed by the consumer's own count, and ends the connection.
    * A message is acknowledged after its batch was committed, or because it had landed before.
    """

    def __init__(
        self,
        client: NatsClient,
        options: NatsOptions,
        context: Context,
        *,
        subject: str,
        stream: StreamFacts,
        start: Start,
    ) -> None:
        """``subject`` is where the consumer is asked for messages."""
        self._client = client
        self._options = options
        self._context = context
        self._where = f"{options.location} {options.stream}"
        self._created = stream.created
        # A message that no request has room for would never come: also one that is too large, to be told.
        largest = min(client.max_payload, max(options.max_record_bytes, LARGEST_BYTES))
        bytes_max = max(options.buffer_bytes, largest + BESIDE_BYTES)
        self._pulls = Pulls(
            client.publish,
            subject=subject,
            inbox=client.records_to,
            messages=options.batch_messages,
            bytes_max=bytes_max,
            heartbeat_s=min(HEARTBEAT_S_MAX, options.idle_timeout_s / HEARTBEATS_MISSED or HEARTBEAT_S_MAX),
            room=context.room,
        )
        # What may wait is bounded by what is asked for. A server that sends more ends the connection, and nothing
        # is lost by that: it is asked for again.
        self._held_bytes_max = 2 * (bytes_max + options.batch_messages * BESIDE_BYTES)
        self._landed = self._seq = start.landed
        self._expected = start.landed + 1 if start.landed and start.gap is None else None
        """The sequence that comes next, if that is known."""
        self._has_no_holes = stream.keeps_each and not options.subjects
        """Whether a hole in the sequence means that something is missing: it was discarded; or it was
        acknowledged, and the sink has lost it."""
        self._acknowledges_each = stream.retention is Retention.WORK_QUEUE
        self._deliveries = 0
        self._acknowledgements: Acknowledgements[str] = Acknowledgements(
            self._acknowledge, context, cursor=lambda: self.cursor
        )
        self._heard_at = asyncio.get_running_loop().time()
        client.on_record = self._receive

    # -- in ------------------------------------------------------------------------------------------------

    def _receive(self, message: NatsMessage) -> None:
        """Takes whatever the consumer sends."""
        self._heard_at = asyncio.get_running_loop().time()
        if message.reply.startswith(_ACK):
            self._pulls.arrived(len(message.payload))
            self._client.inbox.put(message, size=len(message.payload) + MESSAGE_BYTES)
            if self._client.inbox.size > self._held_bytes_max + self._options.max_record_bytes:
                self._client.fail(SourceUnavailable(f"{self._where}: more was received than requested"))
        else:
            said = self._pulls.handle(message)
            if said is not None:
                self._client.fail(self._taken_away(said))
        if not self._client.inbox.is_full:
            self._pulls.ask()

    async def next(self) -> list[NatsMessage]:
        """Returns everything that has arrived, at least one message."""
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

    def _taken_away(self, said: str) -> SourceUnavailable | FeedMisconfigured:
        if "maxbytes" in said.replace(" ", ""):
            return FeedMisconfigured(
                f"{self._where}: the next message is larger than any request allows; "
                "raise source.max_record_bytes"
            )
        hint = "; has this feed moved to another worker?" if "deleted" in said else ""
        return SourceUnavailable(f"{self._where}: the consumer is gone: {said}{hint}")

    def close(self) -> None:
        """Nothing more is read. May be repeated."""
        self._pulls.close()

    # -- out -----------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> JSON:
        return {"seq": self._seq, "created": self._created}

    def batches(self, messages: Sequence[NatsMessage]) -> Iterator[Batch]:
        """The batch of some messages. Raises why the feed cannot go on after that."""
        return self._acknowledgements.batches(self._records(messages))

    def _records(self, messages: Sequence[NatsMessage]) -> Iterator[tuple[bytes, str]]:
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
            if self._context.ends_at is not None and received.seq > self._context.ends_at:
                raise EndReached(f"{self._where}: the requested range ends before {received.seq}")
            if message.size > self._options.max_record_bytes:
                raise oversize(self._where, self._options, size=message.size, after=self.cursor)
            self._check_gap(received)
            self._seq = received.seq
            record = message.payload
            if self._options.envelope:
                record = enclose(about(message, received), record)
            yield record, message.reply

    def _check_delivery(self, received: Received) -> None:
        self._deliveries += 1
        if received.delivery != self._deliveries:
            raise SourceUnavailable(
                f"{self._where}: delivery {self._deliveries} went missing between the server and us"
            )

    def _check_gap(self, received: Received) -> None:
        if self._expected is not None and received.seq != self._expected and self._has_no_holes:
            gap = f"message {self._expected - 1} is followed by {received.seq}"
            log_gap(self._context, self._where, gap, missed=received.seq - self._expected)
        self._expected = received.seq + 1

    def _acknowledge(self, replies: Sequence[str]) -> None:
        # The last one stands for all before it, unless each must have its own.
        self._client.acknowledge(replies if self._acknowledges_each else replies[-1:])


def about(message: NatsMessage, received: Received) -> dict[str, JSON]:
    """What an envelope tells about a message."""
    at = datetime.fromtimestamp(min(received.at_ns, AT_NS_MAX) / NANOSECONDS, UTC)
    said: dict[str, JSON] = {"subject": message.subject, "seq": received.seq, "time": at.isoformat()}
    if message.raw_headers:
        said["headers"] = dict(message.headers)
    return said
