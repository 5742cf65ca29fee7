"""A file that is read while it grows, and found again under whatever name it has by then.

A *position* names a file by its inode and by a checksum of its first bytes: inodes are given away again as
soon as a file is deleted, and a file that is truncated keeps its own. It survives a rename, a copy and a restart.

A file that was rotated is followed by the one that was modified next, of those beside it whose names are its
own and a number or date; by the one at the path when there is none.

Nothing here waits, and nothing but regular files is opened. Reading stops at the size that the file system tells,
so that files of the kernel (``/proc``), which have none, yield nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from zlib import crc32

from feedq.connectors.records.framing import Framed, Framer
from feedq.errors import FeedMisconfigured
from feedq.model import JSON

HEAD_BYTES = 1024
"""How much of its beginning tells a file from others. Two logs differ in their first line, by its time."""
READ_BYTES = 256 * 1024
SCANS_MAX = 100
"""A directory is looked at until two looks in a row agree, each in well under a millisecond."""
_ROTATED = re.compile(r"[-._]?[0-9][-._:T0-9]*")
"""What rotation appends to a name, unless it compresses the file too."""


@dataclass(frozen=True, slots=True)
class FileCursor:
    """After which byte of which file."""

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
    """One open file, read from front to back."""

    __slots__ = ("_fileno", "_framer", "_head", "_read", "inode", "path")

    def __init__(self, path: str, framer: Framer) -> None:
        """Raises what `os.open` does, and `FeedMisconfigured` for what is no regular file."""
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
        self._framer = framer
        self._read = 0
        """Bytes from its beginning that were read."""
        self._head = b""
        """The first of them."""

    @property
    def position(self) -> FileCursor:
        """After the last record that was given back."""
        offset = self._read - self._framer.pending
        return FileCursor(self.inode, offset, crc32(self._head[:offset]))

    @property
    def modified_ns(self) -> int:
        """When something was last written to it, by the clock of the file system."""
        return os.fstat(self._fileno).st_mtime_ns

    @property
    def pending(self) -> int:
        """Bytes that were read of a record that is not complete yet."""
        return self._framer.pending

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

    def read(self) -> Framed | None:
        """What has been added since, a part at a time; None at the end, for now."""
        size = os.fstat(self._fileno).st_size
        data = os.pread(self._fileno, min(READ_BYTES, max(0, size - self._read)), self._read)
        if not data:
            return None
        if len(self._head) < HEAD_BYTES:
            self._head += data[: HEAD_BYTES - len(self._head)]
        self._read += len(data)
        return self._framer.push(data)

    def is_another(self) -> bool:
        """Whether the content was replaced under our eyes."""
        if os.fstat(self._fileno).st_size < self._read:
            return True
        return self._beginning(len(self._head)) != self._head

    def finish(self, mark: bytes) -> Framed:
        """The record that the end of the file ends, if there is one. Afterwards only `position` may be asked."""
        framed = self._framer.push(mark) if self._framer.pending else Framed()
        self._framer = _Done()
        return framed

    def close(self) -> None:
        os.close(self._fileno)

    def _beginning(self, length: int) -> bytes:
        return os.pread(self._fileno, length, 0)


class _Done:
    """Stands for a framer with nothing left."""

    pending = 0

    def push(self, data: bytes | bytearray) -> Framed:
        raise AssertionError("the file was finished")


def find(path: str, position: FileCursor, framer: Callable[[], Framer]) -> FollowedFile | None:
    """The file of a position, by whatever name beside ``path``; else a copy of it; None if all are gone."""
    for _ in range(SCANS_MAX):
        before = _possible_successors(path, position.inode)
        # A copy is second best, and among those one is as good as another.
        for name in sorted(before, key=lambda name: before[name].st_ino != position.inode):
            file = _open(name, framer(), is_wanted=before[name].st_ino == position.inode)
            if file is not None and file.holds(position):
                file.go_to(position.offset)
                return file
            if file is not None:
                file.close()
        # Names change hands while files are rotated: what was looked at must have been all there is.
        if _inodes(before) == _inodes(_possible_successors(path, position.inode)):
            return None
    return None


def open_next(path: str, file: FollowedFile, framer: Callable[[], Framer]) -> FollowedFile | None:
    """The file to read when ``file`` is over, at its beginning; None if there is none yet."""
    for _ in range(SCANS_MAX):
        rotated = rotated_after(path, file)
        name, inode = rotated or (path, inode_at(path))
        if inode is None or inode == file.inode:
            return None
        opened = _open(name, framer(), is_wanted=True)
        if opened is not None:
            # Between the look and the opening, the name may have gone to a file that is not the next one.
            if opened.inode == inode and (
                rotated or (rotated_after(path, file) or (path, inode))[1] == inode
            ):
                return opened
            opened.close()
    return None


def rotated_after(path: str, file: FollowedFile) -> tuple[str, int] | None:
    """Name and inode of the rotated file to read when ``file`` is over, if it is not yet the one at ``path``."""
    before = _possible_successors(path, file.inode)
    for _ in range(SCANS_MAX):
        at_path, after_ns = inode_at(path), file.modified_ns
        later = [
            (status.st_mtime_ns, name, status.st_ino)
            for name, status in before.items()
            if _ROTATED.fullmatch(os.path.basename(name).removeprefix(os.path.basename(path)))
            and status.st_ino not in (at_path, file.inode)
            and status.st_mtime_ns > after_ns
            and not file.is_copied_to(name)
        ]
        again = _possible_successors(path, file.inode)
        if _inodes(before) == _inodes(again):
            return min(later)[1:] if later else None
        before = again
    return None


def _open(path: str, framer: Framer, *, is_wanted: bool) -> FollowedFile | None:
    """None: it is gone since it was listed, or is no file, or somebody else's.

    Raises OSError for a file that is there and cannot be opened for now: to go on without it would lose or double
    what it holds.
    """
    try:
        return FollowedFile(path, framer)
    except (FileNotFoundError, NotADirectoryError, FeedMisconfigured):
        return None
    except PermissionError:
        if is_wanted:
            raise
        return None


def _inodes(files: Mapping[str, os.stat_result]) -> dict[str, int]:
    return {name: status.st_ino for name, status in files.items()}


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
    """Of the file that a path leads to by now; None if there is none."""
    try:
        return os.stat(path).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None
