"""The retry plan of a group commit: what the next attempt does differently, and when there is none. Pure.

The first attempt is optimistic. Refused records make the next one careful; a commit that is refused has deferred
constraints checked at once. Tables that are locked are left out, and checkpoints that are, passed over. Only
errors at the checkpoints, which all feeds need, are the sink's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Final

from feedq.sinks.base import Target
from feedq.sinks.sqlstate import ErrorScope

CONFLICTS_MAX: Final = 5
"""Transactions that end in a deadlock or a serialization failure are tried again this often."""


class CommitMode(IntEnum):
    """The mode of an attempt: how it guards against what the database refuses."""

    OPTIMISTIC = 0
    CAREFUL = 1
    """Under savepoints: refused records go to the dead letters, broken targets are left out."""
    IMMEDIATE = 2
    """Besides, constraints deferred to the commit are checked at once, because the commit was refused."""


class FailedPart(Enum):
    """Where an attempt has failed."""

    CHECKPOINTS = auto()
    TARGET = auto()
    COMMIT = auto()
    """From the dead letters on."""


class GroupFailed(Exception):
    """An attempt failed: nothing was written, and the transaction is still open, or broken."""

    def __init__(
        self,
        part: FailedPart,
        trouble: ErrorScope,
        error: Exception,
        said: str,
        *,
        target: Target | None = None,
    ) -> None:
        super().__init__(said)
        self.part, self.trouble, self.error, self.target = part, trouble, error, target


class NextStep(Enum):
    """The step that follows from an attempt that failed."""

    AGAIN = auto()
    POSTPONE = auto()
    """The sink is well: the feeds are in trouble."""
    GIVE_UP = auto()
    """The sink is unavailable."""


@dataclass(slots=True)
class RetryPlan:
    """Says what the next attempt at a group does differently. Pure."""

    targets: Collection[Target]
    briefly: bool
    lock_uncertain: Collection[Target] = ()
    """Targets that may be locked, and whose locks are not to be waited for: they were locked a while ago, or the
    group has waited enough."""
    held: dict[Target, str] = field(default_factory=dict)
    """Targets that cannot be written now, and why."""
    around_locks: bool = False
    """Whether to leave out feeds whose checkpoints somebody has locked."""
    mode: CommitMode = CommitMode.OPTIMISTIC
    _conflicts: int = 0

    def after(self, failed: GroupFailed) -> NextStep:
        """Decide after an attempt that failed on a session that still works."""
        trouble, part, target = failed.trouble, failed.part, failed.target
        if target is not None and trouble in (ErrorScope.LOCKED, ErrorScope.LATER):
            why = " is locked" if trouble is ErrorScope.LOCKED else f": {failed}"
            self.held[target] = f"table {target.table!r}{why}"
            # One wait is enough for all who wait with it.
            self.lock_uncertain = self.targets
        elif trouble is ErrorScope.LOCKED and part is FailedPart.CHECKPOINTS and not self.around_locks:
            self.around_locks = True
        elif trouble is ErrorScope.CONFLICT and self._conflicts < CONFLICTS_MAX:
            self._conflicts += 1
        elif part is FailedPart.CHECKPOINTS:
            return NextStep.GIVE_UP
        elif self.mode is max(CommitMode):
            return NextStep.POSTPONE
        else:
            self.mode = CommitMode.IMMEDIATE if part is FailedPart.COMMIT else CommitMode(self.mode + 1)
        return NextStep.AGAIN
