"""Whose a checkpoint is, and what to say to a feed that finds another one's. Pure.

Looked at by the fence only: from then on every write names the commit that the fence left, which nobody else has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from feedq.errors import Conflict
from feedq.sinks.base import Checkpoint, CheckpointChange, FenceRequest


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
                f"that is gone, `feedq feed adopt {request.feed}` goes on from its cursor; if it lives, set "
                "FEEDQ_ENVIRONMENT to another name here, or land in another database"
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
