"""The ``nats`` connector: messages of a JetStream stream, exactly once, by their sequence.

The cursor is the sequence of the last message. Each connection makes its consumer anew, right behind the
cursor (`feedq.connectors.nats_consumer` says why it must), pulls a bounded number of messages ahead, and
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
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, Context, log_gap
from feedq.connectors.messages import READ_AHEAD_BYTES, MessageOptions, name_at_source
from feedq.connectors.nats_client import NO_RESPONDERS, JetStreamRefusal, NatsClient
from feedq.connectors.nats_consumer import JetStream, Reading, Retention, choose_start
from feedq.connectors.wire.connection import open_connection
from feedq.connectors.wire.dialing import bounded
from feedq.connectors.wire.remote import Scheme, check_template
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, FeedqError, SourceUnavailable
from feedq.records.batch import Batch

PORT: Final = 4222
Deliver = Literal["all", "new", "last"]
_STREAM = re.compile(r"[^\s.*>/\\]+")
_SUBJECT = re.compile(r"[^\s.>]+(\.[^\s.>]+)*(\.>)?|>")


@dataclass(frozen=True, slots=True)
class NatsCursor:
    """The cursor: a sequence of a stream, and which stream of that name it was."""

    seq: int
    created: str

    @classmethod
    def of(cls, cursor: JSON) -> NatsCursor | None:
        match cursor:
            case {"seq": int(seq), "created": str(created)}:
                return cls(seq, created)
        return None

    def cursor(self) -> JSON:
        return {"seq": self.seq, "created": self.created}


class NatsOptions(MessageOptions):
    """Options of a feed with ``connector: nats``."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {
        "nats": Scheme(tls=False, port=PORT),
        "tls": Scheme(tls=True, port=PORT),
    }
    TAKES_PATH: ClassVar[bool] = False

    url: str
    """`nats://host` or `tls://host`; default port 4222. Needs NATS 2.9 or later."""
    stream: Annotated[str, Field(min_length=1, max_length=255)]
    """JetStream stream to read."""
    subjects: Annotated[tuple[str, ...], Field(max_length=256)] = ()
    """Subjects to read, such as `orders.*.created` or `orders.>`. Default: all. Several need NATS 2.10."""
    deliver: Deliver = "all"
    """Which messages a feed without a cursor gets: `all`, only `new` ones, or from the `last` one on. A work
    queue is always read from its beginning."""
    domain: Annotated[str | None, Field(min_length=1, max_length=255)] = None
    """JetStream domain of the stream, behind leaf nodes."""
    token: str | None = None
    """Token to log in with: `"{name}"` for a secret."""
    nkey_seed: str | None = None
    """Seed of an nkey to log in with: `"{name}"` for a secret."""
    credentials: str | None = None
    """Content of a credentials file (JWT and nkey) to log in with: `"{name}"` for a secret, such as
    `${file:/path/feed.creds}`."""
    inbox_prefix: str = "_INBOX"
    """Prefix of reply subjects, for a user who may not subscribe to the default."""
    max_unacknowledged: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    """Maximum number of messages waiting for their commit."""
    batch_messages: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    """Maximum number of messages to request in advance; fewer when few arrive or memory is short."""

    def check_cursor(self, cursor: JSON) -> None:
        if NatsCursor.of(cursor) is None:
            raise ValueError('must have a sequence and its stream, such as {"seq": 12, "created": "2026-…"}')

    def cursor_back(self, cursor: JSON, records: int) -> JSON:
        """By sequences of the stream, of which a subject may have some only."""
        position = NatsCursor.of(cursor)
        if position is None:
            raise ValueError("it is not a sequence of a stream")
        return NatsCursor(max(0, position.seq - records), position.created).cursor()

    def cursor_place(self, cursor: JSON) -> int:
        position = NatsCursor.of(cursor)
        if position is None:
            raise ValueError("it is not a sequence of a stream")
        return position.seq

    def cursor_said(self, said: JSON, like: JSON) -> JSON:
        """A sequence, of the same stream as the other cursor unless it says which."""
        known = NatsCursor.of(like)
        if isinstance(said, int) and not isinstance(said, bool) and known is not None:
            return NatsCursor(said, known.created).cursor()
        return super().cursor_said(said, like)

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
                raise ValueError(
                    f"{subject!r} is not a subject: words with dots between, `>` only at the end"
                )
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
                raise ValueError(f"cannot be combined with source.{other}: give one way to log in")
        return check_template(text, info)


OLDEST_SERVER: Final = (2, 9)
"""Heartbeats of pulls, and consumers that have a name without being durable."""
SERVER_WITH_SUBJECTS: Final = (2, 10)
LEAVE_S: Final = 0.3
"""How long a trial waits for its consumer to be deleted."""
PASSING: Final = {500, 503}
"""Codes of what another try may mend."""
STREAM_NOT_FOUND: Final = 10059
NAME_IN_USE: Final = 10013
"""Two workers were about to make the same consumer."""
WORK_QUEUE_TAKEN: Final = {10099, 10100}
DISABLED: Final = {10039, 10076}
"""JetStream, for the account or at all."""


class NatsConnector:
    """Makes one attempt to read a feed's source."""

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
        client: NatsClient | None = None
        reading: Reading | None = None
        try:
            async with bounded(self._location, self._options.connect_timeout_s):
                client = await self._open()
                await client.log_in()
                self._check_version(client)
                reading = await self._begin(client, NatsCursor.of(cursor))
            self._context.on_connected()
            while True:
                for batch in reading.batches(await reading.next()):
                    yield batch
        finally:
            if reading is not None:
                reading.close()
            if client is not None:
                await self._leave(client)

    # -- the connection ------------------------------------------------------------------------------------

    async def _open(self) -> NatsClient:
        # TLS begins when the server has said that it wants it, or in `log_in`, never in the socket's first bytes.
        connection = await open_connection(
            self._options, self._context, buffer_bytes=READ_AHEAD_BYTES, tls_later=True
        )
        return NatsClient(connection, self._options, self._context)

    def _check_version(self, client: NatsClient) -> None:
        version = ".".join(map(str, client.version))
        if client.version < OLDEST_SERVER:
            raise FeedMisconfigured(f"{self._location}: NATS 2.9 or later is needed, this is {version}")
        if len(self._options.subjects) > 1 and client.version < SERVER_WITH_SUBJECTS:
            raise FeedMisconfigured(
                f"{self._location}: several source.subjects need NATS 2.10, this is {version}; "
                "write one, or one feed for each"
            )

    async def _leave(self, client: NatsClient) -> None:
        try:
            if self._trial_consumer is not None and client.inbox.failure is None:
                # If it cannot be told any more, the server deletes it later by itself.
                with suppress(TimeoutError, JetStreamRefusal, ValueError, FeedqError):
                    async with asyncio.timeout(LEAVE_S):
                        await JetStream(client, self._options).delete_consumer(self._trial_consumer)
        finally:
            await client.close()

    # -- the consumer --------------------------------------------------------------------------------------

    async def _begin(self, client: NatsClient, position: NatsCursor | None) -> Reading:
        options, context = self._options, self._context
        jetstream = JetStream(client, options)
        try:
            stream = await jetstream.stream_facts()
            if stream.retention is Retention.INTEREST:
                raise FeedMisconfigured(
                    f"{self._where}: its retention is by interest, which drops messages while no worker runs this "
                    "feed; read a stream that keeps messages by limits, or a work queue, that has it as its source"
                )
            if context.ends_at is not None and stream.retention is not Retention.LIMITS:
                raise FeedMisconfigured(
                    f"{self._where}: it keeps messages only until they are acknowledged, so there is nothing to "
                    "backfill"
                )
            start = choose_start(position, stream, options.deliver)
            consumer = await jetstream.make_consumer(stream, self._name, start, trial=context.trial)
        except JetStreamRefusal as refusal:
            raise self._explain(refusal) from refusal
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SourceUnavailable(
                f"{self._where}: its answer is not JetStream's; is it a NATS server?"
            ) from error
        self._trial_consumer = consumer if context.trial else None
        if start.gap is not None:
            log_gap(context, self._where, start.gap, missed=start.missed)
        subject = f"{jetstream.prefix}.CONSUMER.MSG.NEXT.{options.stream}.{consumer}"
        return Reading(client, options, context, subject=subject, stream=stream, start=start)

    def _explain(self, refusal: JetStreamRefusal) -> SourceUnavailable | FeedMisconfigured:
        if refusal.code == int(NO_RESPONDERS) and refusal.err_code is None:
            return SourceUnavailable(
                f"{self._location}: JetStream does not answer; is it enabled for this account and domain, "
                "and may the user publish to its API?"
            )
        if refusal.err_code == STREAM_NOT_FOUND:
            return FeedMisconfigured(
                f"{self._where}: there is no such stream; check source.stream and source.domain"
            )
        if refusal.err_code in WORK_QUEUE_TAKEN:
            return FeedMisconfigured(
                f"{self._where}: a work queue has one consumer per subject, and one other than this feed's "
                "already exists"
            )
        said = f"{self._where}: {refusal}"
        if refusal.err_code in DISABLED:
            return FeedMisconfigured(said)
        is_passing = refusal.code in PASSING or refusal.err_code == NAME_IN_USE
        return SourceUnavailable(said) if is_passing else FeedMisconfigured(said)
