"""Settings that are durations, the smallest and the largest value that each takes, and fleets to try them on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nextafter
from typing import Any

from feedq.celery.beat import LOOK_INTERVAL_S
from feedq.core.lease import TRUST_MARGIN
from feedq.settings import HEARTBEAT_MIN_S, Settings
from tests.fakes import FakeFleet
from tests.fakes.durations import DURATIONS

DAY_S = 86_400.0
IS_DURATION = re.compile(r"_(s|days|per_s|per_pass)$")
STEPS_SLACK = 12
"""From what is due to what shows: two looks, a pass, a claim, a connection, and a row or two."""

HOURLY = DURATIONS.model_copy(
    update={
        "heartbeat_s": 600.0,
        "ttl_s": 1_800.0,
        "reconcile_interval_s": 1_500.0,
        "settle_s": 600.0,
        "handoff_timeout_s": 3_000.0,
    }
)
"""The same fleet three hundred times slower, in which a day is no longer than five minutes are in the other."""
BESIDE_THE_LOWEST: Mapping[str, Mapping[str, float]] = {
    "ttl_s": {"heartbeat_s": 0.2},
}
BESIDE_THE_LARGEST: Mapping[str, Mapping[str, float]] = {
    "heartbeat_s": {"ttl_s": DAY_S},
}
"""What has to be larger, too, or some other setting would be what limits it."""


def durations() -> set[str]:
    return {name for name in Settings.model_fields if IS_DURATION.search(name)}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one number among the settings."""

    lowest: float
    largest: float

    @classmethod
    def of(cls, name: str) -> Bounds:
        field = Settings.model_fields[name]
        found: dict[str, Any] = {
            bound: getattr(m, bound)
            for m in field.metadata
            for bound in ("ge", "gt", "le")
            if hasattr(m, bound)
        }
        lowest = nextafter(found["gt"], inf) if "gt" in found else found["ge"]
        return cls(lowest, LARGEST_TOGETHER.get(name, found["le"]))


LARGEST_TOGETHER: Mapping[str, float] = {"heartbeat_s": DAY_S / 2}
"""Where another setting, at its own largest, allows less than the field does."""


def at_lowest(name: str) -> Settings:
    return _valid(DURATIONS, {**BESIDE_THE_LOWEST.get(name, {}), name: Bounds.of(name).lowest})


def at_largest(name: str) -> Settings:
    return _valid(HOURLY, {**BESIDE_THE_LARGEST.get(name, {}), name: Bounds.of(name).largest})


def _valid(base: Settings, changed: Mapping[str, float]) -> Settings:
    """Raises `ValidationError`: these are not permitted together."""
    values = {name: getattr(base, name) for name in base.model_fields_set}
    return Settings(**{**values, **changed})


class TimedFleet(FakeFleet):
    """Three workers and six feeds; each step is short enough for its durations, and no shorter."""

    def __init__(self, settings: Settings) -> None:
        is_slow = settings.ttl_s >= HOURLY.ttl_s
        heartbeat_s = max(settings.heartbeat_s, HEARTBEAT_MIN_S)
        spare_s = settings.ttl_s * (1 - TRUST_MARGIN) - heartbeat_s
        longest_s = 200.0 if is_slow else 0.1
        self.step_s = max(0.01, min(longest_s, spare_s / 4))
        super().__init__(step_s=self.step_s, rate_hz=0.005 if is_slow else 2.0, settings=settings)
        self.slack_s = STEPS_SLACK * self.step_s + 2 / (0.005 if is_slow else 2.0)
        for name in "abc":
            self.add_worker(name)
        self.add_feeds(6)

    def start(self) -> None:
        """Until everything streams, and a silence or a crash would be taken for one."""
        self.run_until(
            self.everything_streams, limit_s=self.settings.settle_s + self.noticed_s + self.slack_s
        )
        self.run(max(0.0, self.settings.ttl_s - self.clock.monotonic()) + self.slack_s)

    @property
    def noticed_s(self) -> float:
        """How long until what only time brings about is seen: by a look or by a pass."""
        return min(LOOK_INTERVAL_S, self.settings.reconcile_interval_s) + self.step_s

    def feeds_of(self, name: str) -> set[int]:
        return {v.feed.id for v in self.store.feeds.views() if v.worker == name}

    def until_it_streams(self, limit_s: float) -> None:
        self.run_until(self.everything_streams, limit_s=limit_s + self.slack_s)
