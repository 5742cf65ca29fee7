"""The ``nats`` connector: messages of a JetStream stream, exactly once, by their sequence.

The cursor is the sequence of the last message. Each connection makes its consumer anew, right behind the
cursor (`feedq.connectors.protocol.nats.consumer` says why it must), pulls a bounded number of messages ahead, and
acknowledges them once they are committed.

A stream may discard messages before they are read. A first message that lies beyond the cursor, or a hole in the
sequence of a stream that is read as a whole, is logged (`LogEvent.SOURCE_GAP`) and counted, and reading goes on.
So is what a work queue has no more, since it was acknowledged, when the sink has lost it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from ssl import SSLContext
from typing import ClassVar, Final, Literal

from nats.errors import Error
from nats.js.api import RetentionPolicy, StreamInfo
from nats.js.errors import APIError, ServerError, ServiceUnavailableError
from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.protocol.nats.consumer import (
    NatsCursor,
    Start,
    Terms,
    choose_start,
    created,
    make_consumer,
    retention_of,
)
from feedq.connectors.protocol.nats.nats_link import NatsLink, NatsLogin
from feedq.connectors.protocol.nats.nats_messages import Consumed, Reading
from feedq.connectors.protocol.nats.pulls import HEARTBEAT_S_MAX, HEARTBEATS_MISSED, Pulls
from feedq.connectors.records.messages import MessageOptions, fill_in, name_at_source
from feedq.connectors.wire.dialing import bounded
from feedq.connectors.wire.remote import Scheme, check_template, parse_location
from feedq.connectors.wire.streams import open_streams, server_name, tls_context
from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.model import JSON, Batch
from feedq.telemetry import SOURCE_MISSED, LogEvent, log

PORT: Final = 4222
OLDEST_SERVER: Final = (2, 9)
"""Heartbeats of pulls, and consumers that have a name without being durable."""
SERVER_WITH_SUBJECTS: Final = (2, 10)
MESSAGE_BYTES: Final = 16 * 1024
"""Room for subject, headers and reply beside the largest payload, when a request limits bytes."""

logger = log(__name__)

LEAVE_S: Final = 0.3
"""How long a trial waits for its consumer to be deleted."""
STREAM_NOT_FOUND: Final = 10059
NAME_IN_USE: Final = 10013
"""Two workers were about to make the same consumer."""
WORK_QUEUE_TAKEN: Final = {10099, 10100}
DISABLED: Final = {10039, 10076}
"""JetStream, for the account or at all."""

LARGEST_BYTES: Final = 16 * 2**20
"""A request has room for a message of this size, whatever records may be: so that a large one can be told of."""

_STREAM = re.compile(r"[^\s.*>/\\]+")
_SUBJECT = re.compile(r"[^\s.>]+(\.[^\s.>]+)*(\.>)?|>")


class NatsOptions(MessageOptions):
    """Options of a feed with ``connector: nats``."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {
        "nats": Scheme(tls=False, port=PORT),
        "tls": Scheme(tls=True, port=PORT),
    }

    url: str = Field(
        description="Where the server listens: `nats://host`, or `tls://host` with TLS; the port is 4222 unless "
        "given. NATS 2.9 or later."
    )
    stream: str = Field(min_length=1, max_length=255, description="Name of the JetStream stream to read.")
    subjects: tuple[str, ...] = Field(
        default=(),
        max_length=256,
        description="Subjects to read of it, such as `orders.*.created` or `orders.>`; all unless given. "
        "Several need NATS 2.10.",
    )
    deliver: Literal["all", "new", "last"] = Field(
        default="all",
        description="Where a feed without a cursor begins: with `all` messages that the stream holds, with those "
        "that are `new`, or with the `last` one. A work queue is always read from its beginning.",
    )
    domain: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="JetStream domain of the stream, where leaf nodes lie between.",
    )
    token: str | None = Field(
        default=None, description='Token to log in with instead of a user: `"{name}"` for a secret.'
    )
    nkey_seed: str | None = Field(
        default=None, description='Seed of an nkey to log in with: `"{name}"` for a secret.'
    )
    credentials: str | None = Field(
        default=None,
        description='Content of a credentials file (a JWT and its nkey) to log in with: `"{name}"` for a secret, '
        "which may be `${file:/path/feed.creds}`.",
    )
    inbox_prefix: str = Field(
        default="_INBOX",
        description="Where answers to this client go, if its user may not subscribe to the usual place.",
    )
    tls_first: bool = Field(
        default=False,
        description="With TLS: shake hands before the server says anything, as it must be set to expect.",
    )
    max_unacknowledged: int = Field(
        default=20_000,
        ge=1,
        le=1_000_000,
        description="Messages that may wait to be committed before the server sends no more.",
    )
    batch_messages: int = Field(
        default=1_000, ge=1, le=100_000, description="Messages that are asked for ahead."
    )

    @field_validator("url")
    @classmethod
    def _check_path(cls, url: str) -> str:
        if parse_location(url, cls.SCHEMES).target not in ("", "/"):
            raise ValueError("has something after the port; it must be nats://host or tls://host")
        return url

    @field_validator("stream", "domain")
    @classmethod
    def _check_stream(cls, name: str | None) -> str | None:
        if name is not None and not _STREAM.fullmatch(name):
            raise ValueError("must be a name without spaces, dots, slashes and wildcards")
        return name

    @field_validator("subjects", "inbox_prefix")
    @classmethod
    def _check_subjects(cls, value: tuple[str, ...] | str) -> tuple[str, ...] | str:
        for subject in (value,) if isinstance(value, str) else value:
            if not _SUBJECT.fullmatch(subject):
                raise ValueError(f"{subject!r} is no subject: words with dots between, `>` only at the end")
        if not isinstance(value, str) and len(set(value)) < len(value):
            raise ValueError("names a subject twice")
        return value

    @field_validator("token", "nkey_seed", "credentials")
    @classmethod
    def _check_login(cls, text: str | None, info: ValidationInfo) -> str | None:
        if text is None:
            return None
        for other in ("username", "token", "nkey_seed", "credentials"):
            if other != info.field_name and info.data.get(other) is not None:
                raise ValueError(f"cannot go with source.{other}: one way to log in is enough")
        return check_template(text, info)

    @field_validator("tls_first")
    @classmethod
    def _check_tls_first(cls, wanted: bool, info: ValidationInfo) -> bool:
        if wanted and not info.data.get("url", "tls://").startswith("tls://"):
            raise ValueError("needs a tls:// source.url")
        return wanted


class NatsConnector:
    """One connection attempt of one feed."""

    Options: ClassVar[type[ConnectorOptions]] = NatsOptions

    def __init__(self, options: NatsOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._location = options.location
        self._where = f"{self._location} {options.stream}"
        self._name = name_at_source(context.environment, context.feed)
        self._trial_consumer: str | None = None

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        """Batches after ``cursor``, until the connection ends: it never ends without an error.

        Raises:
            SourceUnavailable: not reached, broken off, or the consumer was taken away.
            SourceSilent: nothing for the idle timeout, not even a heartbeat.
            FeedMisconfigured: refused credentials or permission, no such stream, a payload over the limit.
        """
        link: NatsLink | None = None
        acknowledging: asyncio.Task[None] | None = None
        try:
            async with bounded(self._location, self._options.connect_timeout_s) as give_up_at:
                tls = await tls_context(self._options)
                link = await self._open(give_up_at, tls)
                await self._log_in(link, tls)
                reading = await link.unless_failed(self._begin(link, NatsCursor.of(cursor)))
            self._context.on_connected()
            acknowledging = asyncio.create_task(reading.send_acknowledgements())
            while True:
                taken = reading.take(await reading.next())
                if taken.records:
                    yield reading.batch(taken)
                if taken.failure is not None:
                    raise taken.failure
        finally:
            if acknowledging is not None:
                acknowledging.cancel()
                await asyncio.wait([acknowledging])
            if link is not None:
                await self._leave(link)

    # -- the connection ------------------------------------------------------------------------------------

    async def _open(self, give_up_at: float, tls: SSLContext | None) -> NatsLink:
        # TLS begins when the server has said that it wants it, or in `log_in`, never in the socket's first bytes.
        streams = await open_streams(self._options, self._context, give_up_at=give_up_at, tls=None)
        return NatsLink(
            streams,
            where=self._location,
            buffer_bytes=self._options.buffer_bytes,
            payload_bytes_max=self._options.max_record_bytes,
        )

    async def _log_in(self, link: NatsLink, tls: SSLContext | None) -> None:
        options, context = self._options, self._context
        login = NatsLogin(
            name=f"feedq/{context.environment}/{context.feed}",
            inbox_prefix=options.inbox_prefix,
            username=fill_in(options.username, context),
            password=fill_in(options.password, context),
            token=fill_in(options.token, context),
            nkey_seed=fill_in(options.nkey_seed, context),
            credentials=fill_in(options.credentials, context),
        )
        await link.log_in(
            login,
            tls=tls,
            tls_first=options.tls_first,
            server_name=server_name(options),
            timeout_s=options.connect_timeout_s,
        )
        version = link.client.connected_server_version
        if (version.major, version.minor) < OLDEST_SERVER:
            raise FeedMisconfigured(f"{self._location}: NATS 2.9 or later is needed, this is {version}")
        if len(options.subjects) > 1 and (version.major, version.minor) < SERVER_WITH_SUBJECTS:
            raise FeedMisconfigured(
                f"{self._location}: several source.subjects need NATS 2.10, this is {version}; "
                "write one, or one feed for each"
            )

    async def _leave(self, link: NatsLink) -> None:
        try:
            if self._trial_consumer is not None and link.inbox.failure is None:
                js = link.client.jetstream(domain=self._options.domain, timeout=LEAVE_S)
                # If it cannot be told any more, the server deletes it later by itself.
                with suppress(Error, OSError):
                    await js.delete_consumer(self._options.stream, self._trial_consumer)
        finally:
            await link.close()

    # -- the consumer --------------------------------------------------------------------------------------

    async def _begin(self, link: NatsLink, position: NatsCursor | None) -> Reading:
        options = self._options
        js = link.client.jetstream(domain=options.domain, timeout=options.connect_timeout_s)
        terms = Terms(options.subjects, options.deliver, options.max_unacknowledged, self._context.trial)
        try:
            stream = await js.stream_info(options.stream)
            start = choose_start(position, stream, options.deliver)
            consumer = await make_consumer(js, stream, self._name, start, terms)
            self._trial_consumer = consumer if terms.trial else None
            if start.gap is not None:
                SOURCE_MISSED.inc(start.missed)
                self._log_gap(start.gap)
            return await self._read(link, consumer, self._consumed(stream, start))
        except (APIError, Error) as error:
            raise self._explain(error) from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            # The library takes an answer apart as if it could be trusted.
            raise SourceUnavailable(
                f"{self._where}: what it answered is no answer of JetStream; is it a NATS server?"
            ) from error

    async def _read(self, link: NatsLink, consumer: str, consumed: Consumed) -> Reading:
        options, client = self._options, link.client
        prefix = "$JS.API" if options.domain is None else f"$JS.{options.domain}.API"
        idle_timeout_s = options.idle_timeout_s
        # A message that no request has room for would never come: also one that is too large, to be told.
        largest = min(client.max_payload, max(options.max_record_bytes, LARGEST_BYTES))
        bytes_max = max(options.buffer_bytes, largest + MESSAGE_BYTES)
        pulls = Pulls(
            client.publish,
            subject=f"{prefix}.CONSUMER.MSG.NEXT.{options.stream}.{consumer}",
            inbox=client.new_inbox(),
            messages=options.batch_messages,
            bytes_max=bytes_max,
            heartbeat_s=min(HEARTBEAT_S_MAX, idle_timeout_s / HEARTBEATS_MISSED or HEARTBEAT_S_MAX),
        )
        held_max = 2 * (bytes_max + options.batch_messages * MESSAGE_BYTES)
        reading = Reading(
            link, pulls, consumed, options=options, context=self._context, held_bytes_max=held_max
        )
        # What may wait is bounded by what is asked for. A server that sends more ends the connection, and nothing
        # is lost by what the library drops then: it is asked for again.
        subscription = await client.subscribe(
            f"{pulls.inbox}.*",
            cb=reading.receive,
            pending_msgs_limit=4 * options.batch_messages + 1000,
            pending_bytes_limit=4 * bytes_max,
        )
        link.expect_records(subscription._id)
        return reading

    def _consumed(self, stream: StreamInfo, start: Start) -> Consumed:
        config, trial = stream.config, self._context.trial
        retention = retention_of(stream)
        is_whole = not self._options.subjects and config.max_msgs_per_subject <= 0
        return Consumed(
            where=self._where,
            created=created(stream),
            landed=start.landed,
            expected=start.landed + 1 if start.landed and start.gap is None else None,
            has_no_holes=is_whole,
            acknowledges_each=retention is RetentionPolicy.WORK_QUEUE,
            acknowledges=not trial,
        )

    def _log_gap(self, detail: str) -> None:
        logger.warning(LogEvent.SOURCE_GAP, feed=self._context.feed, source=self._where, detail=detail)

    def _explain(self, error: APIError | Error) -> SourceUnavailable | FeedMisconfigured:
        """An error of the server or of the library as one of ours."""
        if isinstance(error, ServiceUnavailableError) and error.err_code is None:
            return SourceUnavailable(
                f"{self._location}: JetStream does not answer; is it enabled for this account and domain, "
                "and may the user publish to its API?"
            )
        if not isinstance(error, APIError):
            return SourceUnavailable(f"{self._where}: {str(error).removeprefix('nats: ')}")
        if error.err_code == STREAM_NOT_FOUND:
            return FeedMisconfigured(
                f"{self._where}: there is no such stream; check source.stream and source.domain"
            )
        if error.err_code in WORK_QUEUE_TAKEN:
            return FeedMisconfigured(
                f"{self._where}: a work queue has one consumer for a subject, and another one than this feed's "
                "is there already"
            )
        said = f"{self._where}: {error.description}"
        is_passing = isinstance(error, ServerError | ServiceUnavailableError) or error.err_code == NAME_IN_USE
        return (
            SourceUnavailable(said)
            if is_passing and error.err_code not in DISABLED
            else FeedMisconfigured(said)
        )
