"""Settles a commit whose answer was lost: tells from the checkpoints what became of it. Pure.

A group commit is one transaction: if one of its feeds carries its ``commit_id``, all of it happened. A feed that
still carries what it was to continue says that nothing of it did. Any other ``commit_id`` tells nothing: a
successor has taken the feed over, or the sink has gone back, and the feed has to be fenced anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from feedq.core.model import FeedKey
from feedq.sinks.base import CommitUnknown, Written


@dataclass(frozen=True, slots=True)
class LastCommit:
    """Says who committed a feed last, and under which epoch the feed is now."""

    epoch: int
    commit_id: UUID | None


def decide(unknown: CommitUnknown, checkpoints: Mapping[int, LastCommit]) -> Written | None:
    """What the commit did; None when nothing of it happened. ``checkpoints`` is by feed id."""
    continues = {write.key: write.continues for write in unknown.writes}
    landed: list[FeedKey] = []
    untouched: list[FeedKey] = []
    fenced: list[FeedKey] = []
    rewound: list[FeedKey] = []
    for key in unknown.written.landed:
        last = checkpoints.get(key[0])
        if last is not None and last.commit_id == unknown.commit_id:
            landed.append(key)
        elif last is not None and last.epoch > key[1]:
            fenced.append(key)
        elif last is not None and last.epoch == key[1] and continues[key] in (None, last.commit_id):
            untouched.append(key)
        else:
            rewound.append(key)
    if untouched and not landed:
        return None
    written = unknown.written
    return replace(
        written,
        landed={key: written.landed[key] for key in landed},
        dead={key: n for key, n in written.dead.items() if key in landed},
        fenced=(*written.fenced, *fenced),
        # What is untouched beside others that have landed was put back by hand, it alone.
        rewound=(*written.rewound, *rewound, *untouched),
    )
