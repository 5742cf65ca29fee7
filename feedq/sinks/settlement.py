"""What became of a commit whose answer was lost, told from the checkpoints. Pure.

A group commit is one transaction: if one of its feeds carries its ``commit_id``, all of it happened. Under our
own epoch nobody else commits, so another ``commit_id`` there means that it did not. A feed that a successor
has taken and committed since tells nothing; it is lost to us in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from feedq.model import FeedKey
from feedq.sinks.base import CommitUnknown, Written


@dataclass(frozen=True, slots=True)
class LastCommit:
    """Who committed a feed last, and under which epoch the feed is now."""

    epoch: int
    commit_id: UUID | None


def decide(unknown: CommitUnknown, checkpoints: Mapping[int, LastCommit]) -> Written | None:
    """What the commit did; None when nothing of it happened. ``checkpoints`` is by feed id."""
    happened = False
    failed = False
    overtaken: list[FeedKey] = []
    for feed_id, epoch in unknown.written.landed:
        last = checkpoints.get(feed_id)
        if last is not None and last.commit_id == unknown.commit_id:
            happened = True
        elif last is not None and last.epoch == epoch:
            failed = True
        else:
            overtaken.append((feed_id, epoch))
    assert not (happened and failed), f"commit {unknown.commit_id} happened in part"
    if failed:
        return None
    written = unknown.written
    return replace(
        written,
        landed={key: n for key, n in written.landed.items() if key not in overtaken},
        dead={key: n for key, n in written.dead.items() if key not in overtaken},
        fenced=(*written.fenced, *overtaken),
    )
