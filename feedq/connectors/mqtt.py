"""The ``mqtt`` connector: messages of an MQTT broker, acknowledged once they are committed.

The broker keeps a session for the feed, under a client id that is the same on every worker, and in it what was
not acknowledged: whatever happens, that comes again, and nothing is lost. QoS 1 promises *at least once*, though,
and there is no cursor to tell what has landed: messages that were not yet acknowledged when a connection broke, or
when a worker died, come again, and those that were committed land twice. A feed that is stopped or moved waits a
moment for its last commits before it leaves the broker. Where messages have an identity, ``key`` in the sink
leaves out what comes again. Packet identifiers cannot tell it: brokers use them again.

The cursor holds no position. It says which session the feed has had, so that a session that the broker dropped is
noticed (`LogEvent.SOURCE_GAP`), and its topics, so that those taken out of the feed can be unsubscribed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from secrets import token_hex
from typing import Annotated, ClassVar, Final, Literal
from zlib import crc32

from paho.mqtt.client import topic_matches_sub
from paho.mqtt.reasoncodes import ReasonCode
from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, Context, log_gap
from feedq.connectors.messages import (
    Acknowledgements,
    MessageOptions,
    enclose,
    name_at_source,
    oversize,
)
from feedq.connectors.mqtt_link import Message, MqttLink
from feedq.connectors.wire.connection import open_connection
from feedq.connectors.wire.dialing import bounded
from feedq.connectors.wire.remote import Scheme
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.records.batch import Batch

KEEPALIVE_S_MAX: Final = 60
TOPIC_BYTES_MAX: Final = 65_535
SHARED: Final = "$share/"


class MqttOptions(MessageOptions):
    """Options of a feed with ``connector: mqtt``."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {
        "mqtt": Scheme(tls=False, port=1883),
        "mqtts": Scheme(tls=True, port=8883),
    }
    TAKES_PATH: ClassVar[bool] = False

    url: str
    """`mqtt://host` (port 1883) or `mqtts://host` (TLS, port 8883)."""
    topics: Annotated[tuple[str, ...], Field(min_length=1, max_length=256)]
    """Topic filters, such as `plant/+/temperature` or `plant/#`. `$share/group/filter` shares the messages
    within the group."""
    version: Literal["5", "3.1.1"] = "5"
    """Version of the protocol. Use 5 if the broker supports it."""
    client_id: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    """Name of the session at the broker; no other client may use it. Default: made from the environment and
    the feed's name."""
    session_expiry_s: Annotated[int, Field(ge=0, le=2**32 - 1)] = 7 * 86_400
    """How long the broker keeps the session and its messages without a connection; 4294967295 is forever.
    With 3.1.1 the broker decides."""
    max_unacknowledged: Annotated[int, Field(ge=1, le=65_535)] = 10_000
    """Maximum number of messages waiting for their commit. The broker may allow fewer; with 3.1.1 it alone
    decides."""

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

    def check_cursor(self, cursor: JSON) -> None:
        raise ValueError(
            "cannot be set: the broker keeps the position of an mqtt feed, and sends nothing twice"
        )

    @property
    def keepalive_s(self) -> int:
        """What the broker is told: half of the idle timeout. It is pinged twice as often, which leaves time for
        the answer."""
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
        raise ValueError(f"{topic[:80]!r} is not a topic filter: empty, too long, or with a NUL in it")
    *before, last = topic.split("/")
    if any("#" in level for level in before) or ("#" in last and last != "#"):
        raise ValueError(f"{topic!r}: '#' must be the whole last level")
    if any("+" in level and level != "+" for level in (*before, last)):
        raise ValueError(f"{topic!r}: '+' must be a whole level")


def unshared(topic: str) -> str:
    """The topic filter within a shared one."""
    return topic.split("/", 2)[2] if topic.startswith(SHARED) else topic


LINGER_S: Final = 0.6
"""How long a connection waits at its end for what it has given to be committed. Longer than the writer's usual
interval, and short enough to end within the second that a connector has."""
IDENTIFIER_MAX: Final = 268_435_455
TOPICS_KEPT: Final = 1_024
"""Of which it is remembered what they match."""

_REFUSALS: Final[Mapping[int, str]] = {
    0x84: "source.version",
    0x85: "source.client_id",
    0x86: "source.username and source.password",
    0x87: "source.username and source.password, and what the user may do",
    0x8A: "with the broker's operator",
    0x8C: "source.username and source.password",
}
"""Reasons that another try cannot mend, and what to look at. Those of 3.1.1 come as the same numbers."""


class MqttConnector:
    """Makes one attempt to read a feed's source."""

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
        self._identifiers = frozenset(map(identifier_of, self._topics))
        self._first_match = lru_cache(TOPICS_KEPT)(self._match)

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        """Batches until the connection ends: it never ends without an error.

        Raises:
            SourceUnavailable: not reached, broken off, dismissed by the broker, or its session taken over.
            SourceSilent: no answer to a ping.
            FeedMisconfigured: refused credentials, client id, protocol or topic; a payload over the limit.
        """
        async with bounded(self._location, self._options.connect_timeout_s):
            link = await self._open(cursor)
        cursor = {"client_id": self._client_id, "topics": list(self._topics)}
        acknowledgements = Acknowledgements(link.acknowledge, self._context, cursor=lambda: cursor)
        try:
            self._context.on_connected()
            while True:
                for batch in acknowledgements.batches(self._records(await link.receive())):
                    yield batch
        finally:
            try:
                # What is acknowledged does not come again: give the last batches a moment to be committed.
                all_committed = acknowledgements.all_committed()
                if all_committed is not None and not link.is_lost:
                    await asyncio.wait([all_committed], timeout=LINGER_S)
            finally:
                await link.close()

    # -- the connection ------------------------------------------------------------------------------------

    async def _open(self, cursor: JSON) -> MqttLink:
        connection = await open_connection(
            self._options, self._context, idle_timeout_s=self._options.idle_timeout_s
        )
        link = MqttLink(connection, self._options, self._context)
        try:
            await self._log_in(link, cursor)
        except BaseException:
            await link.close()
            raise
        return link

    async def _log_in(self, link: MqttLink, cursor: JSON) -> None:
        has_session, reason = await link.log_in(self._client_id)
        if reason.is_failure:
            raise self._refused(reason)
        known: set[str] = set()
        if isinstance(cursor, dict) and cursor.get("client_id") == self._client_id:
            if has_session:
                known = set(map(str, cursor["topics"] if isinstance(cursor["topics"], list) else ()))
            else:
                gone = f"the broker no longer has session {self._client_id}, nor the messages since"
                log_gap(self._context, self._location, gone)
        link.unsubscribe(sorted(known.difference(self._topics)))
        await self._subscribe(link, known)

    async def _subscribe(self, link: MqttLink, known: set[str]) -> None:
        # 3.1.1 sends the retained messages again with each subscription that is there already.
        topics = [topic for topic in self._topics if self._options.version == "5" or topic not in known]
        if link.has_identifiers and len(topics) > 1:
            for topic in topics:
                check = partial(self._check_granted, [topic])
                link.subscribe([topic], check, identifier=identifier_of(topic))
        elif topics:
            link.subscribe(topics, partial(self._check_granted, topics))
        await link.until_subscribed()

    def _check_granted(self, topics: Sequence[str], granted: Sequence[ReasonCode]) -> None:
        if len(granted) != len(topics):
            raise SourceUnavailable(
                f"{self._location}: the broker answered {len(topics)} subscriptions with {len(granted)} reason "
                "codes"
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

    def _refused(self, reason: ReasonCode) -> SourceUnavailable | FeedMisconfigured:
        said = f"{self._location}: refused by the broker: {str(reason).lower()}"
        hint = _REFUSALS.get(reason.value)
        return SourceUnavailable(said) if hint is None else FeedMisconfigured(f"{said}; check {hint}")

    # -- messages ------------------------------------------------------------------------------------------

    def _records(self, messages: Sequence[Message]) -> Iterator[tuple[bytes, int | None]]:
        """The record of each message, or nothing, and its number."""
        for message in messages:
            record = b""
            if message.left_out_bytes or self._is_wanted(message):
                record, size = message.payload, message.left_out_bytes or len(message.payload)
                if size > self._options.max_record_bytes:
                    raise oversize(self._location, self._options, size=size, after=None)
                if self._options.envelope:
                    record = enclose(about(message), record)
            yield record, message.number or None

    def _is_wanted(self, message: Message) -> bool:
        """Whether a message is of a declared topic, and comes by the first of them that it matches.

        A session keeps what an earlier declaration has subscribed to. MQTT 5 brokers may send a message once for
        each subscription that it matches; what comes by none that is declared waited for the one before it.
        """
        first = self._first_match(message.topic)
        if not first or first.startswith(SHARED) or self._identifiers.isdisjoint(message.subscriptions):
            return bool(first)
        return identifier_of(first) in message.subscriptions

    def _match(self, topic: str) -> str:
        """The first of the declared topic filters that a topic matches; empty if there is none. One that is shared
        counts only where no other does, since its messages may go to others."""
        matching = [one for one in self._topics if topic_matches_sub(unshared(one), topic)]
        return min(matching, key=lambda one: one.startswith(SHARED), default="")


def about(message: Message) -> dict[str, JSON]:
    """What an envelope tells about a message."""
    said: dict[str, JSON] = {"topic": message.topic, "retain": message.retain}
    if message.properties:
        said["properties"] = dict(message.properties)
    return said


def identifier_of(topic: str) -> int:
    """The identifier of a subscription: always the same, whatever other subscriptions there are."""
    return crc32(topic.encode()) % IDENTIFIER_MAX + 1
