"""The ``file`` connector: records of a file on the worker that others append to, followed across rotation.

::

            ┌─ nothing new ─ wait poll_interval_s ─┐
    open ──►│ read to the end                      │──► truncated: read its copy to the end, or begin anew
            └──────────────────────────────────────┘──► another file at the path: read the old one until it is
                                                        quiet, then go on with the new one from its beginning

Every byte of a file has one place, so a feed resumes exactly: the cursor is a position in a file. It names the
file by its inode and by a checksum of its first bytes: inodes are given away again as soon as a file is deleted,
and a file that is truncated keeps its own. It survives a rename, a copy and a restart. What cannot be read any
more, because a file was truncated or deleted too early, is lost to any reader; then the log says so and the feed
goes on.

A file that was rotated is followed by the one that was modified next, of those beside it whose names are its
own and a number or date; by the one at the path when there is none.

Nothing but regular files is opened. Reading stops at the size that the file system tells, so that files of the
kernel (``/proc``), which have none, yield nothing.

It blocks, and has a thread to itself: a file system that hangs holds up nobody else.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Literal
from zlib import crc32

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, Context, log_gap
from feedq.connectors.reading import FramingOptions, RecordStream
from feedq.connectors.wire.remote import TIMEOUT_S_MAX
from feedq.core.model import JSON
from feedq.errors import EndReached, FeedMisconfigured, SourceSilent, SourceUnavailable
from feedq.records.batch import Batch, Records

HEAD_BYTES = 1024
"""How much of its beginning tells a file from others. Two logs differ in their first line, by its time."""
READ_BYTES = 256 * 1024
BEGIN_BYTES = 256 * 1024
"""How much of its beginning may be a header of CSV: more columns than a table can have."""
UNFINISHED_S = 5.0
"""A record at the end of a file that has no end for this long is told of."""
SCANS_MAX = 100
"""A directory is looked at until two looks in a row agree, each in well under a millisecond."""
_ROTATED = re.compile(r"[-._]?[0-9][-._:T0-9]*")
"""What rotation appends to a name, unless it compresses the file too."""


@dataclass(frozen=True, slots=True)
class FileCursor:
    """The cursor: the byte of a file after which to resume."""

    inode: int
    offset: int
    head: int
    """CRC-32 of the first `HEAD_BYTES` before ``offset``."""

    @property
    def cursor(self) -> JSON:
        return asdict(self)


def parse_position(cursor: JSON) -> FileCursor | None:
    """The position that a cursor is; None if it is that of another kind of source."""
    if isinstance(cursor, dict) and cursor.keys() == {"inode", "offset", "head"}:
        inode, offset, head = cursor["inode"], cursor["offset"], cursor["head"]
        if isinstance(inode, int) and isinstance(offset, int) and isinstance(head, int):
            return FileCursor(inode, offset, head)
    return None


class FollowedFile:
    """Reads an open file from front to back."""

    def __init__(self, path: str, options: FileOptions) -> None:
        """Raises what `os.open` does, and `FeedMisconfigured` for what is not a regular file."""
        # Without O_NONBLOCK a path that is a pipe would wait for somebody to write into it.
        self._fileno = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self._fileno)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise FeedMisconfigured(
                f"{path} is not a regular file; a program that reads it may be run with connector exec"
            )
        self.path = path
        self.inode = status.st_ino
        self._options = options
        self.framer = options.stream_framer()
        self._read = 0
        """Bytes from its beginning that were read."""
        self._head = b""
        """The first of them."""

    @property
    def position(self) -> FileCursor:
        """Where the last record that was given back ends."""
        offset = self._read - self.framer.pending
        return FileCursor(self.inode, offset, crc32(self._head[:offset]))

    @property
    def modified_ns(self) -> int:
        """When something was last written to it, by the clock of the file system."""
        return os.fstat(self._fileno).st_mtime_ns

    def holds(self, position: FileCursor) -> bool:
        """Whether this is the file that a position is in, or a copy of it."""
        if os.fstat(self._fileno).st_size < position.offset:
            return False
        length = min(position.offset, HEAD_BYTES)
        # A head that is not complete is no proof: files may have the same first line.
        if self.inode != position.inode and length < HEAD_BYTES:
            return False
        return crc32(self._beginning(length)) == position.head

    def is_copied_to(self, path: str) -> bool:
        """Whether another file, modified after this one, is the same: one that goes on after it begins alike
        only where both have a heading."""
        try:
            with open(path, "rb", buffering=0) as other:
                size = os.fstat(other.fileno()).st_size
                return size == self._read and other.read(len(self._head)) == self._head
        except OSError:
            return False

    def go_to(self, offset: int) -> None:
        """Read from there; to be called before anything else was read."""
        if offset:
            self.framer = self._options.framer(begin=self._beginning(min(offset, BEGIN_BYTES)))
        self._read = offset
        self._head = self._beginning(min(offset, HEAD_BYTES))

    def go_to_end(self, mark: bytes, *, max_record_bytes: int) -> None:
        """Read from the beginning of the record that is being written, or may be next."""
        size = os.fstat(self._fileno).st_size
        begin = max(0, size - max_record_bytes - len(mark))
        ended = os.pread(self._fileno, size - begin, begin).rfind(mark)
        if ended >= 0:
            self.go_to(begin + ended + len(mark))
        else:
            # One record from the beginning, or one too large to be any.
            self.go_to(size if begin > 0 else 0)

    def read(self, ends_at: int | None = None) -> bytes:
        """What has been added since, a part at a time; nothing at the end, for now, or at the end of what is
        wanted."""
        size = min(os.fstat(self._fileno).st_size, sys.maxsize if ends_at is None else ends_at)
        data = os.pread(self._fileno, min(READ_BYTES, max(0, size - self._read)), self._read)
        self._head += data[: HEAD_BYTES - len(self._head)]
        self._read += len(data)
        return data

    def is_another(self) -> bool:
        """Whether the content was replaced under our eyes."""
        if os.fstat(self._fileno).st_size < self._read:
            return True
        return self._beginning(len(self._head)) != self._head

    def finish(self) -> Records:
        """The record that the end of the file ends, if there is one."""
        mark = self._options.end_mark
        return self.framer.end(mark) if mark and self.framer.pending else Records()

    def close(self) -> None:
        os.close(self._fileno)

    def _beginning(self, length: int) -> bytes:
        return os.pread(self._fileno, length, 0)


def find(path: str, position: FileCursor, options: FileOptions) -> FollowedFile | None:
    """The file of a position, by whatever name beside ``path``; else a copy of it; None if all are gone."""
    for files in _looks(path, position.inode):
        # A copy is second best, and among those one is as good as another.
        for name in sorted(files, key=lambda name: files[name].st_ino != position.inode):
            file = _open(name, options, is_wanted=files[name].st_ino == position.inode)
            if file is not None and file.holds(position):
                file.go_to(position.offset)
                return file
            if file is not None:
                file.close()
    return None


def open_next(path: str, file: FollowedFile, options: FileOptions) -> FollowedFile | None:
    """The file to read when ``file`` is over, at its beginning; None if there is none yet."""
    for _ in range(SCANS_MAX):
        following = _following(path, file)
        if following is None:
            return None
        name, inode = following
        opened = _open(name, options, is_wanted=True)
        if opened is not None:
            # Between the look and the opening, the name may have gone to a file that is not the next one.
            if opened.inode == inode and (_following(path, file) or following)[1] == inode:
                return opened
            opened.close()
    return None


def _following(path: str, file: FollowedFile) -> tuple[str, int] | None:
    """Name and inode of the file to read when ``file`` is over; None if there is none yet."""
    rotated = rotated_after(path, file)
    if rotated is not None:
        return rotated
    inode = inode_at(path)
    return None if inode in (None, file.inode) else (path, inode)


def rotated_after(path: str, file: FollowedFile) -> tuple[str, int] | None:
    """The same, if it is not yet the one at ``path``: that is rotated, too."""
    found: tuple[str, int] | None = None
    for files in _looks(path, file.inode):
        at_path, after_ns = inode_at(path), file.modified_ns
        later = [
            (status.st_mtime_ns, name, status.st_ino)
            for name, status in files.items()
            if _ROTATED.fullmatch(os.path.basename(name).removeprefix(os.path.basename(path)))
            and status.st_ino not in (at_path, file.inode)
            and status.st_mtime_ns > after_ns
            and not file.is_copied_to(name)
        ]
        found = min(later)[1:] if later else None
    return found


def _open(path: str, options: FileOptions, *, is_wanted: bool) -> FollowedFile | None:
    """Opens a file; None: it is gone since it was listed, or is not a file, or somebody else's.

    Raises OSError for a file that is there and cannot be opened for now: to go on without it would lose or double
    what it holds.
    """
    try:
        return FollowedFile(path, options)
    except (FileNotFoundError, NotADirectoryError, FeedMisconfigured):
        return None
    except PermissionError:
        if is_wanted:
            raise
        return None


def _looks(path: str, inode: int) -> Iterator[Mapping[str, os.stat_result]]:
    """Yields the `_possible_successors`, again and again until two looks agree: names change hands while files are
    rotated, and what is decided must have been decided of all there is."""
    before: dict[str, int] = {}
    for _ in range(SCANS_MAX):
        files = _possible_successors(path, inode)
        inodes = {name: status.st_ino for name, status in files.items()}
        if inodes == before:
            return
        yield files
        before = inodes


def _possible_successors(path: str, inode: int) -> dict[str, os.stat_result]:
    """Regular files that may be what ``path`` was, by their inode or their name; itself among them."""
    found: dict[str, os.stat_result] = {}
    name = os.path.basename(path)
    for directory in dict.fromkeys((os.path.dirname(path), os.path.dirname(os.path.realpath(path)))):
        names = [path]  # which is there, though its directory may not be listed
        with (
            suppress(FileNotFoundError, NotADirectoryError, PermissionError),
            os.scandir(directory) as entries,
        ):
            names += [e.path for e in entries if e.inode() == inode or e.name.startswith(name)]
        for each in names:
            try:
                status = os.stat(each)
            except OSError as error:
                if each == path and not isinstance(error, FileNotFoundError | NotADirectoryError):
                    raise
                continue  # gone since it was listed, or a link to nowhere
            if stat.S_ISREG(status.st_mode):
                found[each] = status
    return found


def inode_at(path: str) -> int | None:
    """Returns the inode of the file that a path leads to by now; None if there is none."""
    try:
        return os.stat(path).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


_BEGUN = "begun"
"""In `Context.memory`: the position at which the feed began at the end of a file, or None if at its beginning."""


class FileOptions(FramingOptions):
    """Options of a feed with ``connector: file``."""

    path: str
    """Absolute path of the file on the worker, followed across rotation. Give the feed a `selector` for
    workers that have the file."""
    start: Literal["beginning", "end"] = "beginning"
    """Where a feed without a cursor begins. Later files are read from their beginning."""
    poll_interval_s: Annotated[float, Field(ge=0.01, le=3600)] = 0.25
    """How often to look for new data."""
    rotate_wait_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 5.0
    """After a rotation, how long the old file must be quiet before the new one is read. Its last record needs
    no end mark."""
    missing_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 10.0
    """How long to wait for a missing file before it is an error, retried with backoff."""
    idle_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 0.0
    """After this long without new data the feed is stalled; 0 disables it."""

    def check_cursor(self, cursor: JSON) -> None:
        if parse_position(cursor) is None:
            raise ValueError('must be a position in a file, such as {"inode": 1, "offset": 0, "head": 0}')

    def cursor_place(self, cursor: JSON) -> int:
        """The offset: the cursors that are compared are of one file."""
        position = parse_position(cursor)
        if position is None:
            raise ValueError("it is not a position in a file")
        return position.offset

    def cursor_said(self, said: JSON, like: JSON) -> JSON:
        """An offset in the file of the other cursor, unless it says which file."""
        known = parse_position(like)
        if isinstance(said, int) and not isinstance(said, bool) and known is not None:
            if said and min(said, known.offset) < HEAD_BYTES:
                raise ValueError(
                    f"must be 0 or at least {HEAD_BYTES}: a smaller offset does not identify its file"
                )
            said = FileCursor(known.inode, said, known.head if said else crc32(b"")).cursor
        return super().cursor_said(said, like)

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
            raise ValueError(
                "needs source.framing lines or delimiter: with length, the end of a file may be "
                "inside a record"
            )
        return start


class FileConnector:
    """Reads a feed's file, and those that follow it under the same path."""

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
        self._is_unfinished: bool | None = None
        """Whether it is told that a record has no end; None where a worker before us may have said so."""

    def stream(self, cursor: JSON) -> Iterator[Batch]:
        """Batches after ``cursor``, until the feed stops or the file is gone.

        Raises:
            SourceUnavailable: there is no such file, or it cannot be read.
            SourceSilent: nothing was added for the idle timeout.
            FeedMisconfigured: no regular file, or a record over the limit.
        """
        self._is_unfinished = None if cursor is not None else False
        try:
            if not self._begin(cursor):
                return
            self._context.on_connected()
            while not self._context.stopping.is_set():
                yield from self._read_to_end()
                assert self._file is not None
                if self._file.is_another():
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
                "no file here belongs to the cursor" if position else "the cursor is not a position in a file"
            )
        return self._open(at_end=cursor is None and not begun and self._options.start == "end")

    def _find(self, position: FileCursor) -> bool:
        self._file = find(self._path, position, self._options)
        self._grew_at = time.monotonic()
        return self._file is not None

    def _open(self, *, at_end: bool = False) -> bool:
        """Wait for a file at the path. False: the feed stops before there is one."""
        missing_since, is_told = time.monotonic(), False
        while True:
            try:
                self._file = FollowedFile(self._path, self._options)
            except (FileNotFoundError, NotADirectoryError):
                # What comes later is new, all of it.
                at_end = False
                self._context.memory[_BEGUN] = None
                if not is_told:
                    self._context.on_waiting(
                        f"{self._path}: there is no such file on this worker yet; waiting for it"
                    )
                    is_told = True
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
        # A trial is over before it has waited: whoever tries a feed wants to know what is missing.
        if self._context.trial or time.monotonic() - missing_since >= self._options.missing_timeout_s:
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
        """Go on with the file that replaced ours: where we are if it begins as ours does (editors and rsync write
        a file anew), else at its beginning. Then the end of ours also ends its last record."""
        assert self._file is not None
        position = self._file.position
        following = open_next(self._path, self._file, self._options)
        if following is not None and following.holds(position):
            following.go_to(position.offset)
        else:
            if self._file.framer.pending and not self._options.end_mark:
                self._tell_gap(f"the file ends in the middle of a record ({self._file.framer.pending} bytes)")
            yield from self._stream(self._file).batches(self._file.finish())
            over_since = time.monotonic()
            while following is None:
                if not self._wait_for_file(over_since):
                    return
                following = open_next(self._path, self._file, self._options)
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
        stream = self._stream(self._file)
        # Looked at before each read, so that the new beginning of a file is not taken for the end of the old one.
        while not self._context.stopping.is_set() and not self._file.is_another():
            data = self._file.read(self._context.ends_at)
            if not data:
                self._check_end()
                return
            self._grew_at = time.monotonic()
            yield from stream.take(data)

    def _check_end(self) -> None:
        """Raises `EndReached` where nothing more is wanted."""
        assert self._file is not None
        ends_at, at = self._context.ends_at, self._file.position.offset + self._file.framer.pending
        if ends_at is not None and at >= ends_at:
            raise EndReached(f"{self._path}: the requested range ends at {ends_at}")

    def _stream(self, file: FollowedFile) -> RecordStream[bytes]:
        """The records of a file, whose cursor is its position."""
        return RecordStream(
            file.framer,
            self._context,
            cursor=None,
            follow=lambda *_: file.position.cursor,
            refuse=lambda why, _: self._options.refuse(self._path, why, file.position.cursor),
        )

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
                f"{self._path}: the file was removed, and no new one has appeared (source.missing_timeout_s)"
            )
        return False

    def _wait(self) -> None:
        assert self._file is not None
        quiet_s = time.monotonic() - self._grew_at
        self._tell_unfinished(quiet_s)
        if 0 < self._options.idle_timeout_s <= quiet_s:
            raise SourceSilent(
                f"{self._path}: nothing was added for {self._options.idle_timeout_s:g} s (source.idle_timeout_s)"
            )
        self._context.stopping.wait(self._options.poll_interval_s)

    def _tell_unfinished(self, quiet_s: float) -> None:
        """Say that a record at the end of the file waits for its end; and when it no longer does."""
        assert self._file is not None
        is_unfinished = self._file.framer.pending > 0 and quiet_s >= UNFINISHED_S
        if is_unfinished is not self._is_unfinished:
            self._is_unfinished = is_unfinished
            size = self._file.framer.pending
            said = (
                f"{self._path}: its last {size} bytes are an unfinished record, which lands once it has an end "
                "mark"
            )
            self._context.on_notice("unfinished", said if is_unfinished else None)

    def _tell_gap(self, detail: str) -> None:
        log_gap(self._context, self._path, f"{detail}; reading goes on")
