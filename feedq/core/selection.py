"""A selection of feeds: what the verbs for many of them take, on the command line and elsewhere.

All that is given must hold. The database chooses: `feedq.control.store.feed_listing`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from feedq.core.model import Status
from feedq.errors import InvalidInput

FAILING = frozenset(
    (Status.FAILED, Status.FAILING, Status.QUARANTINED, Status.REFUSING, Status.SINK_UNAVAILABLE)
)
"""The statuses that ``failing`` chooses: of feeds that somebody has to look at."""


class SelectionOrder(StrEnum):
    """The order of chosen feeds; equal feeds are in order of name."""

    NAME = "name"
    STATUS = "status"
    WORKER = "worker"
    ROWS = "rows"
    """The most first; the same goes for bytes, rate, failures and epoch."""
    BYTES = "bytes"
    RATE = "rate"
    AGE = "age"
    """Those that got a record longest ago first; before them those that never did."""
    LAG = "lag"
    """Those whose newest event time is the oldest first."""
    FAILURES = "failures"
    EPOCH = "epoch"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which feeds: of this tenant, with these labels, on this worker, and so on. Empty, it chooses all."""

    names: tuple[str, ...] = ()
    tenant: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    worker: str | None = None
    """The name of the worker that has them."""
    statuses: tuple[Status, ...] = ()
    """Any of these."""
    connector: str | None = None
    match: str | None = None
    """A pattern of names: ``*`` stands for anything, ``?`` for one character."""
    failing: bool = False
    """Only those in trouble, see `FAILING`."""
    unmet: bool = False
    """Only those that are not as expected."""
    dead_letters: bool = False
    """Only those that have dead letters."""
    removing: bool = False
    """Also those that are being removed."""

    def __post_init__(self) -> None:
        """Raises `InvalidInput` for an empty name, as a script has it whose variable is not set."""
        given = {
            "tenant": self.tenant,
            "worker": self.worker,
            "connector": self.connector,
            "match": self.match,
        }
        for key, value in (*given.items(), *(("names", name) for name in self.names)):
            if value == "":
                raise InvalidInput(f"{key}: must not be empty")

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked of a feed, so that all are chosen."""
        return self == Selection(removing=self.removing)


ALL = Selection()


def like(pattern: str) -> str:
    """A pattern of names as SQL's LIKE has it, with the backslash as its escape."""
    special = {"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"}
    return "".join(special.get(character, character) for character in pattern)
