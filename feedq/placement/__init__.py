"""Where feeds go: pure functions from feeds and workers to assignments and moves; no I/O, no clock, no chance.

`place` gives waiting feeds to workers, `rebalance` moves running ones when the fleet has become uneven, and
`donors` says from the workers' counters alone whose feeds could be among them.
"""

from feedq.placement.base import (
    NO_EXPERIENCE,
    Avoided,
    EligibleWorker,
    Experience,
    Held,
    Placement,
    Rules,
    Strategy,
    Transfer,
    WaitingFeed,
    lags,
)
from feedq.placement.placing import place
from feedq.placement.rebalance import donors, rebalance

__all__ = [
    "NO_EXPERIENCE",
    "Avoided",
    "EligibleWorker",
    "Experience",
    "Held",
    "Placement",
    "Rules",
    "Strategy",
    "Transfer",
    "WaitingFeed",
    "donors",
    "lags",
    "place",
    "rebalance",
]
