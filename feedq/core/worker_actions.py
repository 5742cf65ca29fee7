"""Actions: what a `feedq.core.worker.WorkerCore` wants done, in the order in which it says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from feedq.core.model import Claim, FeedKey, Reason, Release

ASSIGNMENTS_MAX = 10_000
"""That are asked for at once; the next heartbeat brings the rest."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Cut every socket, and have all feeds wait for `Resume`."""

    why: str


@dataclass(frozen=True, slots=True)
class Resume:
    """The worker may act as owner again."""


@dataclass(frozen=True, slots=True)
class FetchOrders:
    """Ask which assignments wait for this worker, unless it leaves, and which of its feeds are to stop."""

    worker_id: UUID


@dataclass(frozen=True, slots=True)
class FetchHeld:
    """Ask which leases this worker holds (`WorkerCore.held_found`)."""

    worker_id: UUID


@dataclass(frozen=True, slots=True)
class ClaimFeeds:
    """Claim these assignments (`WorkerCore.claims_answered`)."""

    worker_id: UUID
    keys: list[FeedKey]


@dataclass(frozen=True, slots=True)
class StartFeeds:
    """Claims that were granted: stream them."""

    claims: list[Claim]


@dataclass(frozen=True, slots=True)
class StartApart:
    """Claims that were granted: begin a process for each, which takes its lease over."""

    claims: list[Claim]


@dataclass(frozen=True, slots=True)
class StopFeeds:
    """Have these feeds commit what they have received, and release them."""

    feeds: list[tuple[FeedKey, Reason]]


@dataclass(frozen=True, slots=True)
class LoseFeeds:
    """End these feeds without writing or releasing anything: they have another owner, or may have. Their sockets
    are shut at once, whether their event loop turns or not."""

    keys: list[FeedKey]
    overdue: bool = False
    """Whether they were told before, and have not ended."""


@dataclass(frozen=True, slots=True)
class ReleaseLeases:
    """Let go of these leases. What the database does not know matches nothing."""

    worker_id: UUID
    releases: list[Release]


@dataclass(frozen=True, slots=True)
class AcceptMessage:
    """The claim was committed: from now on the lease brings the feed back, not the message."""

    message: object


@dataclass(frozen=True, slots=True)
class DropMessage:
    """Acknowledge a message for which nothing is to run here."""

    key: FeedKey
    message: object
    """None when no message has come for what is dropped."""
    why: str


@dataclass(frozen=True, slots=True)
class FinishMessage:
    """The feed has ended here."""

    message: object
    why: str


@dataclass(frozen=True, slots=True)
class RunReconcile:
    """Runs a reconcile pass in this worker, because none has finished for too long."""

    pass_age_s: float | None


@dataclass(frozen=True, slots=True)
class AnnounceDrain:
    """Tell the database that this worker takes nothing more. Before the releases, or reconcile would place here
    what they release."""

    worker_id: UUID


@dataclass(frozen=True, slots=True)
class Drained:
    """Says that the drain is over: nothing runs here any more, and nothing will."""


Action: TypeAlias = (
    Suspend
    | Resume
    | FetchOrders
    | FetchHeld
    | ClaimFeeds
    | StartFeeds
    | StartApart
    | StopFeeds
    | LoseFeeds
    | ReleaseLeases
    | AcceptMessage
    | DropMessage
    | FinishMessage
    | RunReconcile
    | AnnounceDrain
    | Drained
)
