"""One feed as it stands in a manifest: what its keys may hold, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from feedq.model import FeedSpec, Selector, StartCursor, TargetState

FEED_KEYS = (
    "name",
    "tenant",
    "connector",
    "source",
    "sink",
    "labels",
    "selector",
    "weight",
    "target_state",
    "resume",
)
RESUME_EXAMPLE = "{cursor: …, records: 318}, as `feedq feed export --with-cursors` writes it"
SELECTOR_KEYS = ("required", "preferred")
SELECTOR_EXAMPLE = "{required: {region: eu}, preferred: {disk: ssd}}"
REQUIRED_KEYS = ("name", "connector", "sink")


def read_feed(feed: Mapping[Any, Any]) -> FeedSpec | list[tuple[str, str]]:
    """The feed; or, as ``(key, what is wrong)``, everything about its shape that is wrong."""
    return list(_problems(feed)) or _spec(feed)


def read_resume(feed: Mapping[Any, Any]) -> StartCursor | None:
    """Where the feed is to begin if it is new, of an entry that `read_feed` found nothing wrong with."""
    resume = feed.get("resume")
    return None if resume is None else StartCursor(resume["cursor"], resume.get("records") or 0)


def plain(spec: FeedSpec, resume: StartCursor | None = None) -> dict[str, Any]:
    """One feed as it stands in a manifest; what is at its default is left out."""
    keys: dict[str, Any] = {"name": spec.name}
    if spec.tenant:
        keys["tenant"] = spec.tenant
    keys |= {"connector": spec.connector, "source": dict(spec.source), "sink": dict(spec.sink)}
    if spec.labels:
        keys["labels"] = dict(spec.labels)
    chosen = {"required": dict(spec.selector.required), "preferred": dict(spec.selector.preferred)}
    if any(chosen.values()):
        keys["selector"] = {key: labels for key, labels in chosen.items() if labels}
    if spec.weight != 1.0:
        keys["weight"] = spec.weight
    keys["target_state"] = spec.target_state.value
    if resume is not None:
        keys["resume"] = {"cursor": resume.cursor, "records": resume.records}
    return keys


def _problems(feed: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    for key in feed:
        if key not in FEED_KEYS:
            yield str(key), f"unknown key {key!r}; known are {', '.join(FEED_KEYS)}"
    for key in REQUIRED_KEYS:
        if feed.get(key) is None:
            yield key, f"{key}: is missing"
    for key in ("name", "connector", "tenant"):
        if feed.get(key) is not None and not isinstance(feed[key], str):
            yield key, f"{key}: must be a string; quote it"
    for key in ("source", "sink", "labels"):
        if feed.get(key) is not None and not isinstance(feed[key], Mapping):
            yield key, f"{key}: must be a mapping"
    for what in _selector_problems(feed.get("selector")):
        yield "selector", what
    weight = feed.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        yield "weight", "weight: must be a number"
    states = [state.value for state in TargetState]
    if feed.get("target_state", states[0]) not in states:
        yield "target_state", f"target_state: must be one of {', '.join(states)}"
    resume = feed.get("resume")
    if resume is not None and not _is_resume(resume):
        yield "resume", f"resume: must be {RESUME_EXAMPLE}"


def _is_resume(resume: Any) -> bool:
    if (
        not isinstance(resume, Mapping)
        or "cursor" not in resume
        or not resume.keys() <= {"cursor", "records"}
    ):
        return False
    records = resume.get("records", 0)
    return isinstance(records, int) and not isinstance(records, bool) and records >= 0


def _selector_problems(selector: Any) -> Iterator[str]:
    if selector is None:
        return
    if not isinstance(selector, Mapping):
        yield f"selector: must be a mapping such as {SELECTOR_EXAMPLE}"
        return
    for key, labels in selector.items():
        if key not in SELECTOR_KEYS:
            # Most likely a label: what to do with a worker that lacks it has to be said.
            yield f"selector: unknown key {key!r}; write it as {SELECTOR_EXAMPLE}"
        elif labels is not None and not isinstance(labels, Mapping):
            yield f"selector.{key}: must be a mapping of labels, as in {SELECTOR_EXAMPLE}"


def _spec(feed: Mapping[str, Any]) -> FeedSpec:
    selector = feed.get("selector") or {}
    return FeedSpec(
        name=feed["name"],
        connector=feed["connector"],
        source=feed.get("source") or {},
        sink=feed["sink"],
        tenant=feed.get("tenant") or "",
        labels=feed.get("labels") or {},
        selector=Selector(required=selector.get("required") or {}, preferred=selector.get("preferred") or {}),
        weight=_as_float(feed.get("weight", 1.0)),
        target_state=TargetState(feed.get("target_state", TargetState.RUNNING)),
    )


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        # An integer beyond the range of floats; the declaration is refused for not being finite.
        return float("inf")
