"""The ``file`` connector: records of a file on the worker that others append to, followed across rotation.

::

            ┌─ nothing new ─ wait poll_interval_s ─┐
    open ──►│ read to the end                      │──► truncated: read its copy to the end, or begin anew
            └──────────────────────────────────────┘──► another file at the path: read the old one until it is
                                                        quiet, then go on with the new one from its beginning

Every byte of a file has one place, so a feed resumes exactly: the cursor is a position in a file, see
`feedq.connectors.local.followed`. What cannot be read any more, because a file was truncated or deleted too early,
is lost to any reader; then the log says so and the feed goes on.

It blocks, and has a thread to itself: a file system that hangs holds up nobody else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.local.followed import (
    FileCursor,
    FollowedFile,
    find,
    inode_at,
    open_next,
    parse_position,
    rotated_after,
)
from feedq.connectors.records.framing import Framed, FramingOptions
from feedq.connectors.wire.remote import TIMEOUT_S_MAX
from feedq.errors import SourceSilent, SourceUnavailable
from feedq.model import JSON, Batch
from feedq.telemetry import LogEvent, log

_BEGUN = "begun"
"""In `Context.memory`: the position at which the feed began at the end of a file, or None if at its beginning."""

logger = log(__name__)


class FileOptions(FramingOptions):
    """Options of a feed with ``connector: file``."""

    path: str
    """Absolute path of the file on the worker. It is followed when it is rotated, by renaming or by copying
    and truncating it. Only workers that have the file should get the feed: see its `labels`."""
    start: Literal["beginning", "end"] = "beginning"
    """Where to begin when nothing has been read yet. Later files are read from their beginning."""
    poll_interval_s: Annotated[float, Field(ge=0.01, le=3600)] = 0.25
    """How often to look whether something was added."""
    rotate_wait_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 5.0
    """When the path leads to another file, the old one is read until nothing has been added for this long:
    programs go on writing to it for a while. Its last record needs no end mark."""
    missing_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 10.0
    """A file that is not there is waited for this long. Then that is an error, and it is looked for again
    with backoff."""
    idle_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 0.0
    """A file to which nothing is added for this long is stalled; 0 is never."""

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        if not path.startswith("/") or path.endswith("/") or "\0" in path:
            raise ValueError("must be the absolute path of a file, such as /var/log/app.log")
        return path

    @field_validator("start")
    @classmethod
    def _check_start(cls, start: str, info: ValidationInfo) -> str:
        if start == "end" and info.data.get("framing") == "length":
            raise ValueError("needs source.framing lines or delimiter: a record's length is before it")
        return start


class FileConnector:
    """One stay of one feed with its file, and with those that follow it under the same path."""

    Options: ClassVar[type[ConnectorOptions]] = FileOptions

    def __init__(self, options: FileOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._path = options.path
        self._file: FollowedFile | None = None
        self._grew_at = 0.0
        """When something was last read, or could have been."""
        self._replaced_at: float | None = None
        """Since when the path leads to another file, or to none."""

    def stream(self, cursor: JSON) -> Iterator[Batch]:
        """Batches after ``cursor``, until the feed stops or the file is gone.

        Raises:
            SourceUnavailable: there is no such file, or it cannot be read.
            SourceSilent: nothing was added for the idle timeout.
            FeedMisconfigured: no regular file, or a record over the limit.
        """
        try:
            if not self._begin(cursor):
                return
            self._context.on_connected()
            while not self._context.stopping.is_set():
                yield from self._read_to_end()
                if self._is_truncated():
                    self._go_on_elsewhere()
                elif self._is_replaced():
                    yield from self._finish()
                else:
                    self._wait()
        except OSError as error:
            raise SourceUnavailable(f"{self._path}: {error.strerror or error}") from error
        finally:
            self._close()

    # -- from one file to the next ---------------------------------------------------------------------

    def _begin(self, cursor: JSON) -> bool:
        """Find the place to read from. False: the feed stops before there is one."""
        memory = self._context.memory
        begun = cursor is None and _BEGUN in memory
        position = parse_position(memory[_BEGUN] if begun else cursor)
        if position is not None and self._find(position):
            return True
        if cursor is not None or position is not None:
            self._tell_gap(
                "the cursor belongs to no file here" if position else "the cursor is none of a file"
            )
        return self._open(at_end=cursor is None and not begun and self._options.start == "end")

    def _find(self, position: FileCursor) -> bool:
        self._file = find(self._path, position, self._options.framer)
        self._grew_at = time.monotonic()
        return self._file is not None

    def _open(self, *, at_end: bool = False) -> bool:
        """Wait for a file at the path. False: the feed stops before there is one."""
        missing_since = time.monotonic()
        while True:
            try:
                self._file = FollowedFile(self._path, self._options.framer())
            except (FileNotFoundError, NotADirectoryError):
                # What comes later is new, all of it.
                at_end = False
                self._context.memory[_BEGUN] = None
                if not self._wait_for_file(missing_since):
                    return False
            else:
                break
        if at_end:
            self._file.go_to_end(self._options.end_mark, max_record_bytes=self._options.max_record_bytes)
            # Or the next attempt would begin at another end, and not read what came in between.
            self._context.memory[_BEGUN] = self._file.position.cursor
        self._grew_at = time.monotonic()
        self._replaced_at = None
        return True

    def _wait_for_file(self, missing_since: float) -> bool:
        if time.monotonic() - missing_since >= self._options.missing_timeout_s:
            raise SourceUnavailable(
                f"{self._path}: there is no such file on this worker (source.missing_timeout_s)"
            )
        return not self._context.stopping.wait(self._options.poll_interval_s)

    def _go_on_elsewhere(self) -> None:
        """The file was truncated: what we have not read may be in a copy of it."""
        assert self._file is not None
        position = self._file.position
        self._close()
        if not self._find(position):
            self._tell_gap(f"the file was truncated, of which {position.offset} bytes had been read")
            self._open()

    def _finish(self) -> Iterator[Batch]:
        """The end of a file that was replaced also ends its last record."""
        assert self._file is not None
        if self._file.pending and not self._options.end_mark:
            self._tell_gap(f"the file ends in the middle of a record ({self._file.pending} bytes)")
        framed = self._file.finish(self._options.end_mark)
        if framed:
            yield self._batch(framed)
        over_since = time.monotonic()
        while (following := open_next(self._path, self._file, self._options.framer)) is None:
            if not self._wait_for_file(over_since):
                return
        self._close()
        self._file = following
        self._grew_at = time.monotonic()
        self._replaced_at = None

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- within one file -------------------------------------------------------------------------------

    def _read_to_end(self) -> Iterator[Batch]:
        assert self._file is not None
        # Looked at before each read, so that the new beginning of a file is not taken for the end of the old one.
        while not self._context.stopping.is_set() and not self._file.is_another():
            framed = self._file.read()
            if framed is None:
                return
            self._grew_at = time.monotonic()
            if framed:
                yield self._batch(framed)
            if framed.is_last:
                raise self._options.refusal(framed, where=self._path, cursor=self._file.position.cursor)

    def _batch(self, framed: Framed) -> Batch:
        assert self._file is not None
        return framed.batch(cursor=self._file.position.cursor, received_at=self._context.clock.now())

    def _is_truncated(self) -> bool:
        return self._file is not None and self._file.is_another()

    def _is_replaced(self) -> bool:
        """Whether the path leads elsewhere, and nobody writes to the old file any more."""
        assert self._file is not None
        now = time.monotonic()
        inode = inode_at(self._path)
        if inode == self._file.inode:
            self._replaced_at = None
            return False
        if self._replaced_at is None:
            # Before it was replaced, something may have been added that we have not read.
            self._replaced_at = now
            return False
        if rotated_after(self._path, self._file) is not None:
            return True  # so often that nobody can still have it open
        quiet_s = now - max(self._replaced_at, self._grew_at)
        if inode is not None:
            return quiet_s >= self._options.rotate_wait_s
        if quiet_s >= self._options.missing_timeout_s:
            raise SourceUnavailable(
                f"{self._path}: the file was removed, and no other has come (source.missing_timeout_s)"
            )
        return False

    def _wait(self) -> None:
        quiet_s = time.monotonic() - self._grew_at
        if 0 < self._options.idle_timeout_s <= quiet_s:
            raise SourceSilent(
                f"{self._path}: nothing was added for {self._options.idle_timeout_s:g} s (source.idle_timeout_s)"
            )
        self._context.stopping.wait(self._options.poll_interval_s)

    def _tell_gap(self, detail: str) -> None:
        logger.warning(
            LogEvent.SOURCE_GAP,
            feed=self._context.feed,
            source=self._path,
            detail=f"{detail}; reading goes on",
        )
