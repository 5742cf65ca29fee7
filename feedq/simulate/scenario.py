"""What is simulated: feeds, workers, and what happens to them; from a command line or from YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from feedq.errors import InvalidInput
from feedq.simulate.happening import (
    DEPLOY_PAUSE_S,
    DEPLOY_RESTART_S,
    Happening,
    Verb,
    parse_duration,
    parse_happening,
)

FEEDS_MAX: Final = 2_000_000
WORKERS_MAX: Final = 10_000
TAIL_S: Final = 60.0
"""How long a scenario that does not say goes on after its last event."""
DEFAULT_EVENTS: Final = ("60s kill 1", "120s join 1", "180s deploy")
MIXED_WEIGHTS: Final = (1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 5.0, 10.0)


def _seconds(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


def _happening(value: Any) -> Any:
    return parse_happening(value) if isinstance(value, str) else value


Duration = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=7 * 86_400)]
Event = Annotated[Happening, BeforeValidator(_happening)]
Labels = dict[str, str]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkerGroup(_Part):
    """Describes workers that are alike."""

    count: int = Field(default=3, ge=0, le=WORKERS_MAX)
    capacity: int = Field(default=500, ge=1, le=1_000_000)
    labels: Labels = Field(default_factory=dict)


class FeedGroup(_Part):
    """Describes feeds that are alike. Their tenants and hosts take turns."""

    count: int = Field(default=1000, ge=0, le=FEEDS_MAX)
    weight: float = Field(default=1.0, gt=0, le=1e9)
    weights: Literal["equal", "mixed"] = "equal"
    """``mixed`` draws multiples of ``weight`` from 1 to 10."""
    tenant: str = ""
    tenants: int = Field(default=0, ge=0, le=1_000_000)
    """So many, called ``tenant1``, …; 0 is ``tenant`` alone."""
    host: str = ""
    hosts: int = Field(default=1, ge=1, le=1_000_000)
    """So many, called ``host1``, …, unless ``host`` is given."""
    required: Labels = Field(default_factory=dict)
    preferred: Labels = Field(default_factory=dict)

    def tenant_of(self, index: int) -> str:
        return f"tenant{index % self.tenants + 1}" if self.tenants else self.tenant

    def host_of(self, index: int) -> str:
        return self.host or f"host{index % self.hosts + 1}"


class Scenario(_Part):
    """Feeds, workers and events."""

    feeds: tuple[FeedGroup, ...] = (FeedGroup(),)
    workers: tuple[WorkerGroup, ...] = (WorkerGroup(),)
    events: tuple[Event, ...] = tuple(map(parse_happening, DEFAULT_EVENTS))
    for_: Duration | None = Field(default=None, alias="for")
    """How long, in seconds; None until a minute after the last event."""
    seed: int = 0

    @model_validator(mode="after")
    def _check(self) -> Scenario:
        if self.feed_count > FEEDS_MAX:
            raise ValueError(f"{self.feed_count} feeds; at most {FEEDS_MAX} can be simulated")
        if self.worker_count > WORKERS_MAX:
            raise ValueError(f"{self.worker_count} workers; at most {WORKERS_MAX} can be simulated")
        if not self.feeds or not self.workers:
            raise ValueError("feeds and workers: each needs at least one group")
        late = [event for event in self.events if self.for_ is not None and event.at_s >= self.for_]
        if late:
            raise ValueError(
                f"event {late[0].text!r} at {late[0].at_s:g} s comes after the end ({self.for_:g} s)"
            )
        hosts = {group.host_of(i) for group in self.feeds for i in range(group.hosts)}
        for event in self.events:
            if event.verb in (Verb.AWAY, Verb.BACK) and (unknown := set(event.names) - hosts):
                known = ", ".join(sorted(hosts)[:5]) + (", …" if len(hosts) > 5 else "")
                raise ValueError(
                    f"event {event.text!r}: no feed has the host {min(unknown)!r}; there are {known}"
                )
        return self

    @property
    def feed_count(self) -> int:
        added = sum(event.count for event in self.events if event.verb is Verb.ADD)
        return sum(group.count for group in self.feeds) + added

    @property
    def worker_count(self) -> int:
        joined = sum(event.count for event in self.events if event.verb is Verb.JOIN)
        return sum(group.count for group in self.workers) + joined

    @property
    def duration_s(self) -> float:
        if self.for_ is not None:
            return self.for_
        return max((self._end_of(event) for event in self.events), default=0.0) + TAIL_S

    def _end_of(self, event: Happening) -> float:
        if event.verb is not Verb.DEPLOY:
            return event.at_s
        rounds = -(-self.worker_count // int(event.options.get("by", 1)))
        each_s = event.options.get("restart", DEPLOY_RESTART_S) + event.options.get("pause", DEPLOY_PAUSE_S)
        return event.at_s + rounds * each_s


def parse_scenario(text: str, *, origin: str) -> Scenario:
    """Reads a scenario in YAML or JSON. Raises `InvalidInput` with every problem."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(f"{origin}: {' '.join(str(error).split())}") from None
    if not isinstance(document, Mapping):
        raise InvalidInput(f"{origin}: must be a mapping with feeds, workers and events")
    return build_scenario(document, origin=origin)


def build_scenario(document: Mapping[str, Any], *, origin: str) -> Scenario:
    """Makes a scenario of plain values. Raises `InvalidInput` with every problem."""
    try:
        return Scenario.model_validate({key: _listed(key, value) for key, value in document.items()})
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise InvalidInput("\n".join(f"{origin}: {_explain(p['loc'], p['msg'])}" for p in problems)) from None


def _listed(key: str, value: Any) -> Any:
    """Makes a list of one group that stands without one."""
    return [value] if key in ("feeds", "workers") and isinstance(value, Mapping) else value


def _explain(place: Sequence[int | str], message: str) -> str:
    # pydantic's words for "raised by our own validator", which says all there is to say.
    said = message.removeprefix("Value error, ")
    path = ".".join(str(part + 1) if isinstance(part, int) else part for part in place)
    return f"{path}: {said[:1].lower()}{said[1:]}" if path and not path.startswith("events") else said
