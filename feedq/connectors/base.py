"""What a connector is: a generator of batches.

A connector opens its source at a cursor and yields one `feedq.records.batch.Batch` after another; the runner takes
the next only when there is room for it, so a connector that waits for its consumer has backpressure for
free. It reports trouble by raising:

* `SourceUnavailable` for what another attempt may fix (refused, reset, silent, closed by the peer);
* `FeedMisconfigured` for what only an edit can fix (a bad option, refused credentials).

Any other exception counts as `SourceUnavailable` and is logged with its traceback. Cancelling the
generator must end it within a second.

``stream`` is an async generator, or a plain one that blocks and gets a thread to itself: see
`feedq.connectors.blocking`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from threading import Event, Lock
from typing import Annotated, Any, ClassVar, Final, Protocol

import msgspec
from pydantic import Field, ValidationInfo, field_validator

from feedq.core.clock import Clock
from feedq.core.limits import UNLIMITED, RateLimits
from feedq.core.model import JSON
from feedq.core.permission import DEFAULT, Permissions
from feedq.core.plugins import installed, load_installed, valid_options
from feedq.core.values import StrictModel
from feedq.records.batch import Batch
from feedq.records.csvtext import CsvFormat
from feedq.records.framing import RecordFormat
from feedq.records.template import RESERVED
from feedq.secrets import check_secret_name, parse_reference
from feedq.telemetry.logs import LogEvent, log
from feedq.telemetry.metrics import SOURCE_MISSED

ENTRY_POINT_GROUP = "feedq.connectors"

logger = log(__name__)

UNANSWERED_S: Final = 1.0
"""A source that has not answered for this long is named: with what is gathered on the way, within two seconds."""


class ConnectorOptions(StrictModel):
    """Base of every connector's options: unknown ones are refused by name."""

    format: RecordFormat = "json"
    """Format of a record. It sets the type of the payload column; JSON pointers (`columns`, `cursor`) need
    `json` or `csv`."""
    csv: Annotated[CsvFormat | None, Field(validate_default=True)] = None
    """With `format: csv`: how a line is split into fields."""
    limits: RateLimits = UNLIMITED
    """`rows_per_s` and `bytes_per_s`, on average. The source is read more slowly; nothing is dropped."""
    NAMES_FIELDS: ClassVar[bool] = False
    """Whether the first line of what is read may name the fields of CSV."""

    secrets: dict[str, str] = Field({})
    """Names of secrets, each with a reference: `${env:NAME}` or `${file:/path}`. Other options use them as
    `{name}`. Workers resolve them; values are never stored or shown."""

    @property
    def record_csv(self) -> CsvFormat | None:
        """How to split the records that are given into fields; None if they are not CSV."""
        return self.csv if self.csv is not None and self.csv.fields else None

    @property
    def record_format(self) -> RecordFormat:
        """The format of the records that are given: JSON, if they are CSV whose first line names its fields."""
        return "json" if self.format == "csv" and self.record_csv is None else self.format

    @property
    def remote_host(self) -> str | None:
        """The host that the feed dials, in lower case and without a port; None if it dials none. Connections to
        one host are paced."""
        return None

    @property
    def peer(self) -> str:
        """Whom the feed dials, for a message."""
        return self.remote_host or "the source"

    def check_cursor(self, cursor: JSON) -> None:
        """Raises `ValueError`, saying what is wrong, for a cursor that this connector does not understand."""

    def cursor_back(self, cursor: JSON, records: int) -> JSON:
        """The cursor that many records before this one. Raises `ValueError` where cursors do not tell."""
        raise ValueError("the cursors of this connector do not count records")

    def cursor_at(self, cursor: JSON, at: datetime) -> JSON:
        """The cursor at a moment before this one. Raises `ValueError` where cursors do not tell."""
        raise ValueError("the cursors of this connector hold no time")

    def cursor_place(self, cursor: JSON) -> int:
        """A cursor as a number that is larger for what is read later: this is how a backfill knows its end.
        Raises `ValueError` where cursors do not tell."""
        raise ValueError("the cursors of this connector cannot be ordered")

    def cursor_said(self, said: JSON, like: JSON) -> JSON:
        """The cursor that a person means by ``said``, who may leave out what it shares with ``like``, another
        cursor of the feed. Raises `ValueError`."""
        self.check_cursor(said)
        return said

    def cut(self, batch: Batch, ends_at: int, before: JSON) -> Batch | None:
        """The part of a batch up to this place, or None; ``before`` is the cursor of the batch before it.
        Connectors that heed `Context.ends_at` are not asked."""
        raise ValueError("its connector read past the end that it was given")

    @field_validator("csv")
    @classmethod
    def _check_csv(cls, csv: CsvFormat | None, info: ValidationInfo) -> CsvFormat | None:
        wanted = info.data.get("format") == "csv"
        if wanted and csv is None:
            raise ValueError("is needed with source.format csv: the names of the fields, or header: true")
        if csv is not None and not wanted:
            raise ValueError("needs source.format csv")
        if csv is not None and not csv.fields and not cls.NAMES_FIELDS:
            raise ValueError("needs fields: only the first line of a file or a stream can name them")
        return csv

    @field_validator("secrets")
    @classmethod
    def _check_secrets(cls, secrets: dict[str, str]) -> dict[str, str]:
        for name, reference in secrets.items():
            check_secret_name(name)
            if name in RESERVED:
                raise ValueError(f"{name!r} has another meaning in templates; choose another name")
            try:
                parse_reference(reference)
            except ValueError as error:
                raise ValueError(f"{name!r} {error}") from None
        return secrets


def check_format(info: ValidationInfo, *formats: RecordFormat) -> None:
    """Refuses an option that needs one of some formats, for its validator. Raises `ValueError`."""
    kind = info.data.get("format", "json")
    if kind not in formats:
        raise ValueError(f"needs source.format {' or '.join(formats)}, not {kind}")


def needs_json(wanted: bool, info: ValidationInfo) -> bool:
    """Validates an option that turns what it is given into JSON."""
    if wanted:
        check_format(info, "json")
    return wanted


class Sockets:
    """The open sockets of one feed, by file descriptor, so that they can be shut while its event loop or its
    thread is stuck. Thread-safe, and kept in very little memory.

    ``shutdown()`` takes effect at once and from any thread; the loop later notices that the connection is over
    and closes the descriptor itself. A connector forgets its descriptor *before* it is closed, so that a number
    that the kernel has given to somebody else is never shut.
    """

    __slots__ = ("_open",)
    _lock = Lock()
    """One for all feeds: it is never held for long."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def watch(self, fileno: int) -> None:
        with self._lock:
            self._open.append(fileno)

    def forget(self, fileno: int) -> None:
        with self._lock, suppress(ValueError):
            self._open.remove(fileno)

    def cut(self) -> int:
        """Shut all of them, in both directions. Returns how many."""
        # Under the lock: nobody can close one of these, and have its number reused, in the meantime.
        with self._lock:
            for fileno in self._open:
                _shut(fileno)
            return len(self._open)


def _shut(fileno: int) -> None:
    # Borrowed and not duplicated: that could fail for want of descriptors, and the socket would stay open.
    with suppress(OSError):
        borrowed = socket.socket(fileno=fileno)
        try:
            borrowed.shutdown(socket.SHUT_RDWR)
        finally:
            borrowed.detach()


class Room(Protocol):
    """The memory that this worker has for what was received and is not committed yet, over all its feeds.

    Code that reads ahead of its consumer takes what it holds, gives it back as it passes it on, and stops reading
    while nothing is left.
    """

    @property
    def left(self) -> int:
        """Bytes; none or less when the worker is full."""

    def take(self, size: int) -> None: ...

    def give_back(self, size: int) -> None: ...


class Boundless:
    """Unlimited room, for tools that run a single feed."""

    left = sys.maxsize

    def take(self, size: int) -> None: ...

    def give_back(self, size: int) -> None: ...


BOUNDLESS: Final[Room] = Boundless()

NEVER: Final = Event()
"""Stays unset: an async connector is cancelled and need not ask."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a connector gets from the runner about its feed."""

    feed: str
    clock: Clock
    guard: Sockets
    on_connected: Callable[[], None]
    """To be called once the source has accepted us and may send."""
    secrets: Mapping[str, str]
    """Resolved on this worker; for the wire only, never for a message or a log."""
    permissions: Permissions = DEFAULT
    """Which addresses and programs this feed may reach."""
    environment: str = "default"
    """Tells this installation from others in names that it leaves at the source, such as a client id."""
    trial: bool = False
    """Nothing will be committed: leave no trace at the source, and do not push out the feed that may be
    running beside this."""
    note_thread: Callable[[], AbstractContextManager[object]] = nullcontext
    """To be entered by a thread while it runs code of the feed: should it end or block the process, it is known
    whose it was."""
    stopping: Event = NEVER
    """Set when a blocking connector must end: wait on it instead of sleeping."""
    memory: dict[str, Any] = field(default_factory=dict)
    """What a connector wants to remember from one connection of a stream to the next, on this worker; small, and
    never needed: it is empty when another worker takes over."""
    room: Room = BOUNDLESS
    ends_at: int | None = None
    """The place (`ConnectorOptions.cursor_place`) beyond which nothing is wanted. A connector that sees such a
    record may yield what came before it and raise `EndReached`."""
    on_waiting: Callable[[str], None] = lambda why: None
    """To be called, with the reason, by a connector that waits for its source instead of failing: its feed
    has it in its status until it is connected. That a source has not answered yet is said without it."""
    on_notice: Callable[[str, str | None], None] = lambda key, said: None
    """To be called, with a name for it and a sentence, by a connector that finds something odd which a person
    should know; it reads on. The feed has it in its history once, and in its status until it is edited, or until
    None is said of the same name."""


def log_gap(context: Context, source: object, detail: str, *, missed: int = 0) -> None:
    """Log that a source may have discarded records before they were read; reading goes on. ``missed``: how many,
    if that is known."""
    SOURCE_MISSED.inc(missed)
    logger.warning(LogEvent.SOURCE_GAP, feed=context.feed, source=str(source), detail=detail)


class Connector(Protocol):
    """Reads one source of one feed. A new one is made for each connection attempt."""

    Options: ClassVar[type[ConnectorOptions]]

    def __init__(self, options: Any, context: Context) -> None: ...

    def stream(self, cursor: JSON) -> AsyncIterator[Batch] | Iterator[Batch]:
        """Connect and yield batches after ``cursor``; None means wherever the source begins."""


def show_cursor(cursor: JSON, *, width: int = 200) -> str:
    """A cursor for a message."""
    text = msgspec.json.encode(cursor).decode()
    return text if len(text) <= width else text[: width - 1] + "…"


def tell_if_unanswered(options: ConnectorOptions, tell: Callable[[str], None]) -> asyncio.TimerHandle:
    """Tells after `UNANSWERED_S` that the source has neither accepted nor refused, unless it is cancelled."""
    said = f"connecting to {options.peer}: no answer for {UNANSWERED_S:g} s"
    return asyncio.get_running_loop().call_later(UNANSWERED_S, tell, said)


def connector_kinds() -> list[str]:
    return installed(ENTRY_POINT_GROUP)


@cache
def load_connector(kind: str) -> type[Connector]:
    """Looked up once a process: reading the installed packages takes milliseconds, and each feed asks.

    Raises `InvalidInput` when there is no such connector or it cannot be imported.
    """
    loaded: type[Connector] = load_installed(ENTRY_POINT_GROUP, kind, "connector")
    return loaded


def parse_options(kind: str, source: Mapping[str, Any]) -> ConnectorOptions:
    """Validate a feed's ``source``. Raises `InvalidInput`, naming each option that is wrong."""
    return valid_options("source", load_connector(kind).Options, source)
