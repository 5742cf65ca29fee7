"""The ``mqtt`` connector: messages of an MQTT broker, acknowledged once they are committed.

The broker keeps a session for the feed, under a client id that is the same on every worker, and in it what was
not acknowledged: whatever happens, that comes again, and nothing is lost. QoS 1 promises *at least once*, though,
and there is no cursor to tell what has landed: a message whose commit and acknowledgement were torn apart lands
twice. What is done about it:

* a feed that is stopped or moved waits a moment for its last commits before it leaves the broker;
* a message that comes again on the connection it is pending on is recognised;
* after a connection broke, the messages that this worker has committed and could not acknowledge are recognised
  when the broker sends them again (`feedq.connectors.protocol.mqtt.pending`).

What is left are the last commits of a worker that died, a quarter of a second's worth, and acknowledgements that
were on their way when a connection broke. Where the messages have an identity, ``key`` in the sink leaves those
out too. Packet identifiers cannot: brokers use them again.

The cursor holds no position. It says which session the feed has had, so that a session that the broker dropped is
noticed (`LogEvent.SOURCE_GAP`), and its topics, so that those taken out of the feed can be unsubscribed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex
from typing import ClassVar, Final, Literal

from paho.mqtt.reasoncodes import ReasonCode
from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.protocol.mqtt.mqtt_link import Message, MqttLink, MqttLogin
from feedq.connectors.protocol.mqtt.pending import PendingMessages, Seen
from feedq.connectors.protocol.mqtt.socket import shake_hands
from feedq.connectors.records.messages import (
    MessageOptions,
    batch_of,
    enclose,
    fill_in,
    name_at_source,
    oversize,
)
from feedq.connectors.wire.dialing import bounded, dial_host
from feedq.connectors.wire.remote import Scheme, parse_location
from feedq.connectors.wire.streams import server_name, tls_context
from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.model import JSON, Batch
from feedq.telemetry import LogEvent, log

LINGER_S: Final = 0.6
"""How long a connection waits at its end for what it has given to be committed. Longer than the writer's usual
interval, and short enough to end within the second that a connector has."""
KEEPALIVE_S_MAX: Final = 60
TOPIC_BYTES_MAX: Final = 65_535
SHARED = "$share/"

_REFUSALS: Final[Mapping[int, str]] = {
    0x84: "source.version",
    0x85: "source.client_id",
    0x86: "source.username and source.password",
    0x87: "source.username and source.password, and what the user may do",
    0x8A: "with the broker's operator",
    0x8C: "source.username and source.password",
}
"""Reasons that another try cannot mend, and what to look at. Those of 3.1.1 come as the same numbers."""

MESSAGES_AT_ONCE = 500
"""After so many that waited the other feeds have their turn: to acknowledge one takes paho about 50 us."""

logger = log(__name__)


class MqttOptions(MessageOptions):
    """Options of a feed with ``connector: mqtt``."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {
        "mqtt": Scheme(tls=False, port=1883),
        "mqtts": Scheme(tls=True, port=8883),
    }

    url: str = Field(
        description="Where the broker listens: `mqtt://host`, or `mqtts://host` with TLS; the ports are 1883 "
        "and 8883 unless given."
    )
    topics: tuple[str, ...] = Field(
        min_length=1,
        max_length=256,
        description="Topic filters to subscribe to, such as `plant/+/temperature` or `plant/#`; "
        "`$share/group/filter` shares the messages with the other members of a group.",
    )
    version: Literal["5", "3.1.1"] = Field(
        default="5",
        description="Version of the protocol. With 3.1.1 the broker alone limits how many messages may be "
        "unacknowledged, often to 20: a feed then gets that many with each commit.",
    )
    client_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Name of the session at the broker, the same on every worker. Unless given it is made of the "
        "environment and the feed's name. Two clients with one id push each other out.",
    )
    session_expiry_s: int = Field(
        default=7 * 86_400,
        ge=0,
        le=2**32 - 1,
        description="How long the broker keeps the session, and messages for it, while the feed is not connected. "
        "4294967295 is for ever. With 3.1.1 the broker decides.",
    )
    max_unacknowledged: int = Field(
        default=10_000,
        ge=1,
        le=65_535,
        description="Messages that may wait to be committed before the broker sends no more; the broker may "
        "have a lower limit. With 3.1.1 only the broker's counts.",
    )

    @field_validator("url")
    @classmethod
    def _check_path(cls, url: str) -> str:
        if parse_location(url, cls.SCHEMES).target not in ("", "/"):
            raise ValueError("has something after the port; it must be mqtt://host or mqtts://host")
        return url

    @field_validator("version", mode="before")
    @classmethod
    def _read_version(cls, version: object) -> object:
        # YAML reads 5 as a number.
        return str(version) if type(version) is int else version

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        for topic in topics:
            check_topic_filter(topic)
        if len(set(topics)) < len(topics):
            raise ValueError("names a topic filter twice")
        return topics

    @field_validator("password")
    @classmethod
    def _check_password(cls, password: str | None, info: ValidationInfo) -> str | None:
        if password is not None and info.data.get("username") is None:
            raise ValueError("needs source.username")
        return password

    @property
    def keepalive_s(self) -> int:
        """A ping after half of the idle timeout without a word leaves the other half for the answer."""
        if not self.idle_timeout_s:
            return KEEPALIVE_S_MAX
        return max(1, min(KEEPALIVE_S_MAX, int(self.idle_timeout_s / 2)))


def check_topic_filter(topic: str) -> None:
    """Raises `ValueError` for what no broker accepts."""
    if topic.startswith(SHARED):
        group, _, inner = topic[len(SHARED) :].partition("/")
        if not group or not inner or any(character in group for character in "+#"):
            raise ValueError(f"{topic!r} must be $share/group/filter")
        topic = inner
    if not topic or "\0" in topic or len(topic.encode()) > TOPIC_BYTES_MAX:
        raise ValueError(f"{topic[:80]!r} is no topic filter: empty, too long, or with a NUL in it")
    *before, last = topic.split("/")
    if any("#" in level for level in before) or ("#" in last and last != "#"):
        raise ValueError(f"{topic!r}: '#' must be the whole last level")
    if any("+" in level and level != "+" for level in (*before, last)):
        raise ValueError(f"{topic!r}: '+' must be a whole level")


@dataclass(slots=True)
class MqttBatch:
    """What messages come to."""

    records: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """Packet identifiers, to be acknowledged in this order."""
    failure: FeedMisconfigured | None = None


class MqttConnector:
    """One connection attempt of one feed."""

    Options: ClassVar[type[ConnectorOptions]] = MqttOptions

    def __init__(self, options: MqttOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._location = options.location
        self._topics = options.topics
        self._client_id = options.client_id or name_at_source(context.environment, context.feed)
        if context.trial:
            # A session of its own, and no member of a group: the running feed misses nothing.
            self._client_id = f"feedq-trial-{token_hex(8)}"
            self._topics = tuple(dict.fromkeys(map(unshared, options.topics)))
        self._pending = PendingMessages(context.memory)
        self._uncommitted = 0
        """Batches that were given and are not committed."""
        self._waiting: list[int] = []
        """Messages that are no records, to be acknowledged after what came before them."""
        self._all_committed: asyncio.Future[None] | None = None

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        """Batches until the connection ends: it never ends without an error.

        Raises:
            SourceUnavailable: not reached, broken off, dismissed by the broker, or its session taken over.
            SourceSilent: no answer to a ping.
            FeedMisconfigured: refused credentials, client id, protocol or topic; a payload over the limit.
        """
        async with bounded(self._location, self._options.connect_timeout_s) as give_up_at:
            link = await self._open(give_up_at)
            try:
                await self._log_in(link, cursor)
            except BaseException:
                link.close()
                raise
        cursor = {"client_id": self._client_id, "topics": list(self._topics)}
        try:
            self._context.on_connected()
            while True:
                messages = await link.inbox.take()
                for start in range(0, len(messages), MESSAGES_AT_ONCE):
                    taken = self._take(link, messages[start : start + MESSAGES_AT_ONCE])
                    if taken.records:
                        yield self._batch(link, taken, cursor)
                    if taken.failure is not None:
                        raise taken.failure
                    await asyncio.sleep(0)
        except SourceUnavailable:
            # Nobody sends those again.
            rest = self._take(link, [message for message in link.inbox.rest() if not message.number])
            if rest.records:
                yield self._batch(link, rest, cursor)
            raise
        finally:
            try:
                await self._linger(link)
            finally:
                link.close()

    # -- the connection ------------------------------------------------------------------------------------

    async def _open(self, give_up_at: float) -> MqttLink:
        where = self._location
        tls = await tls_context(self._options)
        dialed = await dial_host(
            where.host, where.port, where=where, context=self._context, give_up_at=give_up_at
        )
        try:
            if tls is not None:
                wrapped = await shake_hands(dialed.sock, tls, server_name=server_name(self._options))
                dialed = replace(dialed, sock=wrapped)
        except BaseException:
            dialed.close()
            raise
        return MqttLink(
            dialed,
            where=where,
            idle_timeout_s=self._options.idle_timeout_s,
            buffer_bytes=self._options.buffer_bytes,
            payload_bytes_max=self._options.max_record_bytes,
        )

    async def _log_in(self, link: MqttLink, cursor: JSON) -> None:
        accepted = await link.log_in(self._login())
        if accepted.reason.is_failure:
            raise self._refused(accepted.reason)
        known: set[str] = set()
        if isinstance(cursor, dict) and cursor.get("client_id") == self._client_id:
            if accepted.session_present:
                known = set(map(str, cursor["topics"] if isinstance(cursor["topics"], list) else ()))
            else:
                logger.warning(
                    LogEvent.SOURCE_GAP,
                    feed=self._context.feed,
                    source=str(self._location),
                    detail=f"the broker has no session {self._client_id} any more, nor what came since",
                )
        if not accepted.session_present:
            self._pending.forget()
        link.unsubscribe(sorted(known.difference(self._topics)))
        await self._subscribe(link, known)

    async def _subscribe(self, link: MqttLink, known: set[str]) -> None:
        # 3.1.1 sends the retained messages again with each subscription that is there already.
        topics = [topic for topic in self._topics if self._options.version == "5" or topic not in known]
        if topics:
            await link.subscribe(topics, partial(self._check_granted, topics))

    def _check_granted(self, topics: Sequence[str], granted: Sequence[ReasonCode]) -> None:
        if len(granted) != len(topics):
            raise SourceUnavailable(
                f"{self._location}: the broker answers {len(topics)} subscriptions with {len(granted)} reasons"
            )
        for topic, reason in zip(topics, granted, strict=True):
            if reason.is_failure:
                raise FeedMisconfigured(
                    f"{self._location}: subscription to {topic!r} refused: {str(reason).lower()}; "
                    "check source.topics and what the user may subscribe to"
                )
            if reason.value == 0:
                raise FeedMisconfigured(
                    f"{self._location}: {topic!r} is granted with QoS 0 only, which loses messages"
                )

    def _login(self) -> MqttLogin:
        return MqttLogin(
            client_id=self._client_id,
            version=self._options.version,
            keep_session=not self._context.trial,
            keepalive_s=self._options.keepalive_s,
            session_expiry_s=0 if self._context.trial else self._options.session_expiry_s,
            max_unacknowledged=self._options.max_unacknowledged,
            username=fill_in(self._options.username, self._context),
            password=fill_in(self._options.password, self._context),
        )

    def _refused(self, reason: ReasonCode) -> SourceUnavailable | FeedMisconfigured:
        said = f"{self._location}: refused by the broker: {str(reason).lower()}"
        hint = _REFUSALS.get(reason.value)
        return SourceUnavailable(said) if hint is None else FeedMisconfigured(f"{said}; check {hint}")

    # -- messages ------------------------------------------------------------------------------------------

    def _take(self, link: MqttLink, messages: Sequence[Message]) -> MqttBatch:
        """The records of messages, up to one that is too large."""
        taken = MqttBatch()
        for message in messages:
            if message.left_out_bytes:
                size = message.left_out_bytes
                taken.failure = oversize(self._location, self._options, size=size, after=None)
                break
            seen = self._pending.seen(message) if message.number else Seen.NEVER
            if seen is Seen.COMMITTED:
                # It comes before everything that is pending, so its acknowledgement is in order too.
                link.acknowledge(message.number)
            if seen is not Seen.NEVER:
                continue
            payload = message.payload
            if len(payload) > self._options.max_record_bytes:
                taken.failure = oversize(self._location, self._options, size=len(payload), after=None)
                break
            if self._options.envelope:
                taken.records.append(enclose(about(message), payload))
            elif payload:
                taken.records.append(payload)
            if message.number:
                taken.numbers.append(self._pending.add(message))
        if not taken.records:
            self._acknowledge_in_turn(link, taken.numbers)
        return taken

    def _acknowledge_in_turn(self, link: MqttLink, numbers: Sequence[int]) -> None:
        """Messages that are no records are acknowledged once all before them are."""
        self._waiting += numbers
        if not self._uncommitted and not self._context.trial:
            self._pending.acknowledge(self._waiting, link.acknowledge)
            self._waiting = []

    def _batch(self, link: MqttLink, taken: MqttBatch, cursor: JSON) -> Batch:
        numbers, self._waiting = [*self._waiting, *taken.numbers], []
        on_committed = None
        if numbers and not self._context.trial:
            self._uncommitted += 1
            on_committed = partial(self._committed, link, numbers)
        return batch_of(
            taken.records, cursor=cursor, received_at=self._context.clock.now(), on_committed=on_committed
        )

    def _committed(self, link: MqttLink, numbers: Sequence[int]) -> None:
        self._uncommitted -= 1
        if link.is_lost:
            self._pending.keep(numbers)
            return
        self._pending.acknowledge(numbers, link.acknowledge)
        if not self._uncommitted:
            self._acknowledge_in_turn(link, ())
            if self._all_committed is not None and not self._all_committed.done():
                self._all_committed.set_result(None)

    async def _linger(self, link: MqttLink) -> None:
        """Give the last batches a moment to be committed: what is acknowledged does not come again."""
        if self._uncommitted and not link.is_lost:
            link.pause()
            self._all_committed = asyncio.get_running_loop().create_future()
            await link.until(self._all_committed, at_most_s=LINGER_S)


def about(message: Message) -> dict[str, JSON]:
    """What an envelope says of a message."""
    said: dict[str, JSON] = {"topic": message.topic, "retain": message.retain}
    if message.properties:
        said["properties"] = dict(message.properties)
    return said


def unshared(topic: str) -> str:
    """The topic filter within a shared one."""
    return topic.split("/", 2)[2] if topic.startswith(SHARED) else topic
