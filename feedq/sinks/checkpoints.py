"""What a checkpoint says: its cursor as a text, whose it is, and what became of a lost commit. Pure.

Whose a checkpoint is, is asked by the fence only: from then on every write names the commit that the fence left,
which nobody else has.

A group commit is one transaction: if one of its feeds carries its ``commit_id``, all of it happened. A feed that
still carries what it was to continue says that nothing of it did. Any other ``commit_id`` tells nothing: the
checkpoint is lost, and the feed has to be fenced anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import msgspec

from feedq.connectors.base import ConnectorOptions
from feedq.core.json_texts import read_exactly
from feedq.core.model import JSON
from feedq.core.remedies import command
from feedq.errors import Conflict, InvalidInput
from feedq.records.cursor import CURSOR_BYTES_MAX, ESCAPED_NUL
from feedq.sinks.base import (
    Checkpoint,
    CheckpointChange,
    FeedWrite,
    FenceRequest,
    Written,
)


class _AsWritten(Exception):
    """A cursor holds a number that is kept as it was written."""


def _default(value: object) -> Any:
    if isinstance(value, msgspec.Raw):
        raise _AsWritten
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


# The standard library and not msgspec, which writes NaN as null.
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_default).encode
# Escaped down to ASCII: whatever JSON can say comes back as it was, from a text column of any character set.
_encode_ascii: Final = json.JSONEncoder(allow_nan=False, default=_default).encode
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


def cursor_text(cursor: JSON) -> str | None:
    """A cursor for a json column; None is NULL.

    Raises:
        ValueError: PostgreSQL could not give it back as it is; the message says why.
    """
    if cursor is None:
        return None
    if type(cursor) is int:  # most of them, and some thousands a second
        return str(cursor)
    try:
        text = _encode(cursor)
        encoded = text.encode()
    except _AsWritten:
        encoded = msgspec.json.encode(cursor)
        text = encoded.decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the cursor cannot be kept: {error}") from None
    if b"\\u0000" in encoded and ESCAPED_NUL.search(encoded):
        raise ValueError("the cursor cannot be kept: PostgreSQL has no NUL character")
    return text


def ascii_text(cursor: JSON) -> str | None:
    """A cursor for a text column; None is NULL. Raises `ValueError` for what is not JSON."""
    if cursor is None:
        return None
    try:
        return _encode_ascii(cursor)
    except _AsWritten:
        return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], msgspec.json.encode(cursor).decode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the cursor cannot be kept: {error}") from None


def cursor_of(text: str | None) -> JSON:
    """What `cursor_text` or `ascii_text` was given."""
    if text is None:
        return None
    try:
        cursor: JSON = read_exactly(text)
    except ValueError:
        cursor = json.loads(text)  # half of a surrogate pair, which msgspec does not take
    return cursor


def check_cursor(options: ConnectorOptions, cursor: JSON) -> None:
    """Raises `InvalidInput` for a cursor that a person gives to a feed with these options, and cannot."""
    try:
        size = len(cursor_text(cursor) or "")
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    if size > CURSOR_BYTES_MAX:
        raise InvalidInput(f"the cursor has {size} bytes, and at most {CURSOR_BYTES_MAX} are kept")
    try:
        if cursor is not None:
            options.check_cursor(cursor)
    except ValueError as error:
        raise InvalidInput(f"the cursor {error}") from None


def strangers(requests: Sequence[FenceRequest], known: Iterable[Checkpoint]) -> dict[int, str]:
    """Why some of these feeds may not be fenced, by id; ``known`` are the checkpoints of their ids and names."""
    by_id: dict[int, Checkpoint] = {}
    by_name: dict[str, list[Checkpoint]] = {}
    for checkpoint in known:
        by_id[checkpoint.feed_id] = checkpoint
        by_name.setdefault(checkpoint.feed, []).append(checkpoint)
    found: dict[int, str] = {}
    for request in requests:
        if (why := _stranger(request, by_id, by_name)) is not None:
            found[request.feed_id] = why
    return found


def _stranger(
    request: FenceRequest, by_id: Mapping[int, Checkpoint], by_name: Mapping[str, Sequence[Checkpoint]]
) -> str | None:
    identity = request.identity
    if (there := by_id.get(request.feed_id)) is not None:
        if there.feed_uuid == identity.feed:
            return None
        return (
            f"the sink has the checkpoint of another feed under the number {request.feed_id}: {owner_of(there)}. "
            "Was the control database restored from a backup? Remove this feed and declare it again, and it gets "
            "another number"
        )
    for namesake in by_name.get(request.feed, ()):
        if namesake.installation != identity.installation:
            return (
                f"the sink has a checkpoint of {owner_of(namesake)}, and this one is {identity.installation}. If "
                f"that is gone, `{command('feed', 'adopt', request.feed)}` goes on from its cursor; if it lives, "
                "set FEEDQ_ENVIRONMENT to another name here, or land in another database"
            )
    return None


def taken_meanwhile(old: Checkpoint) -> Conflict:
    return Conflict(
        f"the checkpoint of {owner_of(old)} is written to at this moment, or was taken by somebody else: stop "
        "those feeds first, then adopt it again"
    )


def not_its_own(change: CheckpointChange) -> Conflict:
    return Conflict(
        f"feed {change.feed!r}: the sink has the checkpoint of another feed under its number {change.feed_id}; "
        "remove the feed and declare it again, and it gets another number"
    )


def owner_of(checkpoint: Checkpoint) -> str:
    """Says whose a checkpoint is, in words."""
    when = checkpoint.updated_at.isoformat(sep=" ", timespec="seconds")
    return (
        f"feed {checkpoint.feed!r} of installation {checkpoint.installation} "
        f"({checkpoint.records} records, last written {when})"
    )


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The last committer of a feed, and the feed's current epoch."""

    epoch: int
    commit_id: UUID | None

    def is_left_by(self, write: FeedWrite) -> bool:
        """Whether the checkpoint is the one that this write continues."""
        return self.epoch == write.epoch and write.continues in (None, self.commit_id)


@dataclass(frozen=True, slots=True)
class UnknownCommit:
    """A commit whose answer was lost."""

    writes: Sequence[FeedWrite]
    written: Written
    """What it did, if it happened."""

    def covers(self, writes: Sequence[FeedWrite]) -> bool:
        """Whether these were all part of it, as they are."""
        mine = {write.key: write for write in self.writes}
        return all(mine.get(write.key) == write for write in writes)

    def decide(self, checkpoints: Mapping[int, LastCommit]) -> Written | None:
        """What the commit did; None when nothing of it happened. ``checkpoints`` is by feed id."""
        written = self.written
        committed = [write for write in self.writes if write.key in written.landed]
        known = [(write, last) for write in committed if (last := checkpoints.get(write.feed_id)) is not None]
        landed = {write.key for write, last in known if last.commit_id == written.commit_id}
        if not landed and any(last.is_left_by(write) for write, last in known):
            return None
        # What is as it was left beside others that have landed was put back by hand, it alone.
        lost = [write.key for write in committed if write.key not in landed]
        return replace(
            written,
            landed={key: n for key, n in written.landed.items() if key in landed},
            dead={key: n for key, n in written.dead.items() if key in landed},
            lost=(*written.lost, *lost),
        )
