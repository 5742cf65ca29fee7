"""What connectors of message brokers share: their options, and how messages become records and batches.

A record is a message's payload, or, with ``envelope``, a JSON object of what the broker says of the message
and ``data``: the payload as it stands when it is JSON, else as a string, else, when it is not text, as base64
under ``data_base64``. A message without payload is not a record, unless it has an envelope.

Nothing here knows a protocol.
"""

from __future__ import annotations

import asyncio
import re
import sys
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Annotated, Generic, TypeVar

import msgspec
from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import Context, Room, needs_json, show_cursor
from feedq.connectors.wire.remote import BUFFER_BYTES_MAX, RemoteOptions, check_template
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured, FeedqError
from feedq.records.batch import Batch, Records
from feedq.records.csvtext import CsvFormat
from feedq.records.framing import RECORD_BYTES_MAX
from feedq.records.pointer import is_json
from feedq.records.template import fill_in
from feedq.records.turns import others_turn

Item = TypeVar("Item")
Receipt = TypeVar("Receipt")
"""What a message is acknowledged by."""

READ_AHEAD_BYTES = 256 * 1024
"""What may wait at a broker's connection, to be taken apart, before the broker is held back."""
SAID_CHARACTERS_MAX = 300
"""Of a broker's own words in a message."""
MESSAGES_AT_ONCE = 500
"""Taken together, and acknowledged together: that takes about 50 us for each with MQTT."""
_NEITHER_LETTER_NOR_DIGIT = re.compile(r"[^A-Za-z0-9]+")


class MessageOptions(RemoteOptions):
    """Base of the options of connectors of message brokers."""

    username: str | None = None
    """Name to log in with. Takes secrets."""
    password: str | None = None
    """Password to log in with: `"{name}"` for the secret of that name."""
    envelope: bool = False
    """Makes each message a JSON object of its metadata and its payload, as `data` or (if not text)
    `data_base64`. Needs `format: json`."""
    max_record_bytes: Annotated[int, Field(ge=1, le=RECORD_BYTES_MAX)] = 2**20
    """A larger payload fails the feed, after everything before it has landed."""
    buffer_bytes: Annotated[int, Field(ge=1, le=BUFFER_BYTES_MAX)] = 4 * 2**20

    @field_validator("csv")
    @classmethod
    def _check_header(cls, csv: CsvFormat | None) -> CsvFormat | None:
        if csv is not None and csv.header:
            raise ValueError("messages have no header lines; leave out csv.header")
        return csv

    @field_validator("username", "password")
    @classmethod
    def _check_credentials(cls, text: str | None, info: ValidationInfo) -> str | None:
        return None if text is None else check_template(text, info)

    _check_envelope = field_validator("envelope")(needs_json)


def name_at_source(environment: str, feed: str) -> str:
    """The name of a feed at its source: the same on every worker, different for each feed.

    Of letters, digits and dashes only, which every server allows.
    """
    readable = _NEITHER_LETTER_NOR_DIGIT.sub("-", f"{environment}-{feed}")[:40].strip("-")
    exact = sha256("\0".join((environment, feed)).encode()).hexdigest()[:8]
    return f"feedq-{readable}-{exact}"


def credential(template: str | None, context: Context) -> str | None:
    """A credential for the wire, out of an option and the feed's secrets."""
    if template is None:
        return None
    filled = fill_in(template, feed=context.feed, cursor=None, secrets=context.secrets)
    return filled.decode("utf-8", "surrogateescape")


def enclose(about: Mapping[str, JSON], payload: bytes) -> bytes:
    """A message with its envelope."""
    return msgspec.json.encode({**about, **payload_member(payload)})


def payload_member(payload: bytes) -> dict[str, msgspec.Raw | str]:
    """``data`` or ``data_base64`` of an envelope."""
    # It must be a single value: text that follows one could forge the envelope.
    return {"data": msgspec.Raw(payload)} if is_json(payload) else text_member("data", payload)


def text_member(name: str, value: bytes) -> dict[str, msgspec.Raw | str]:
    """A value that may be text or not, as a member of a JSON object."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


def oversize(where: object, options: MessageOptions, *, size: int, after: JSON) -> FeedMisconfigured:
    """The error that a payload over the limit ends the feed with."""
    return FeedMisconfigured(
        f"{where}: payload of {size} bytes after cursor {show_cursor(after)}, at most "
        f"{options.max_record_bytes} are allowed; raise source.max_record_bytes"
    )


class Inbox(Generic[Item]):
    """What has arrived and the connector has not taken yet, in order, or the error that ended it.

    The reader of the source puts items, and the generator takes whatever there is. The reader should pause when
    the items are too large together, and when the worker has no memory left: each item takes its size of that
    until the generator asks for the next ones. One taker at a time, all on one event loop. To be closed.
    """

    def __init__(self, *, bytes_max: int, room: Room) -> None:
        self._bytes_max = bytes_max
        self._room = room
        self._taken = 0
        """The size of what was taken, and may not be passed on yet."""
        self._items: deque[tuple[Item, int]] = deque()
        self._arrived = asyncio.Event()
        self.size = 0
        """Of all items together."""
        self.failure: FeedqError | None = None
        """Why nothing more will come."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_full(self) -> bool:
        """Whether the reader should pause; items are taken all the same. A full worker still allows one item."""
        return self.size >= self._bytes_max or (self.size + self._taken > 0 and self._room.left <= 0)

    def put(self, item: Item, *, size: int) -> None:
        self._room.take(size)
        self._items.append((item, size))
        self.size += size
        self._arrived.set()

    def fail(self, failure: FeedqError) -> None:
        """Say that nothing more comes; the first reason counts. `take` raises it at once: what was not taken was
        not acknowledged either, so it comes again."""
        if self.failure is None:
            self.failure = failure
        self._arrived.set()

    async def take(self) -> list[Item]:
        """Returns what has arrived: at least one item and at most `MESSAGES_AT_ONCE`, and then the others of the
        loop have their turn first. Raises what `fail` was given."""
        self._give_back()
        if self._items:
            await others_turn()
        while self.failure is None and not self._items:
            self._arrived.clear()
            await self._arrived.wait()
        if self.failure is not None:
            raise self.failure
        return self._rest(at_most=MESSAGES_AT_ONCE)

    def _rest(self, *, at_most: int = sys.maxsize) -> list[Item]:
        taken = [self._items.popleft() for _ in range(min(at_most, len(self._items)))]
        size = sum(size for _, size in taken)
        self._taken, self.size = self._taken + size, self.size - size
        return [item for item, _ in taken]

    def close(self) -> None:
        """Forget what was not taken. May be repeated."""
        self._rest()
        self._give_back()

    def _give_back(self) -> None:
        self._room.give_back(self._taken)
        self._taken = 0


class Acknowledgements(Generic[Receipt]):
    """Makes batches of messages, and acknowledges these once they are committed, in the order in which they came.

    A message that is not a record is acknowledged after all those before it.
    """

    def __init__(
        self, send: Callable[[Sequence[Receipt]], None], context: Context, *, cursor: Callable[[], JSON]
    ) -> None:
        """``cursor`` tells it after the messages that were looked at last."""
        self._send = send
        self._clock = context.clock
        self._cursor = cursor
        self._wanted = not context.trial
        self._uncommitted = 0
        """Batches that were given and are not committed."""
        self._waiting: list[Receipt] = []
        """Of messages that are no records."""
        self._all_committed: asyncio.Future[None] | None = None

    def batches(self, messages: Iterable[tuple[bytes, Receipt | None]]) -> Iterator[Batch]:
        """The batch of some messages: of each its record, if that is not empty, and what it is acknowledged by, if
        it is. What ``messages`` raises at one that cannot land is raised behind those before it."""
        records: list[bytes] = []
        failure: FeedqError | None = None
        try:
            for record, receipt in messages:
                if record:
                    records.append(record)
                if receipt is not None:
                    self._waiting.append(receipt)
        except FeedqError as error:
            failure = error
        if records:
            yield self._batch(records)
        else:
            self._send_waiting()
        if failure is not None:
            raise failure

    def _batch(self, records: Sequence[bytes]) -> Batch:
        on_committed = None
        if self._wanted and self._waiting:
            self._uncommitted += 1
            on_committed = partial(self._committed, self._waiting)
        self._waiting = []
        return Records.of(records).batch(
            cursor=self._cursor(), received_at=self._clock.now(), on_committed=on_committed
        )

    def all_committed(self) -> asyncio.Future[None] | None:
        """Is done when every batch is committed; None if that is so."""
        if not self._uncommitted:
            return None
        self._all_committed = asyncio.get_running_loop().create_future()
        return self._all_committed

    def _committed(self, receipts: Sequence[Receipt]) -> None:
        self._uncommitted -= 1
        self._send(receipts)
        self._send_waiting()
        if not self._uncommitted and self._all_committed is not None and not self._all_committed.done():
            self._all_committed.set_result(None)

    def _send_waiting(self) -> None:
        if not self._uncommitted and self._waiting and self._wanted:
            waiting, self._waiting = self._waiting, []
            self._send(waiting)
