"""Which workers a feed asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Selector:
    """Which workers may have a feed, by their labels."""

    required: Mapping[str, str] = field(default_factory=dict)
    """A worker without one of these never gets it."""
    preferred: Mapping[str, str] = field(default_factory=dict)
    """A worker with all of these gets it, unless all such are full."""


ANYWHERE = Selector()
