"""What a feed's own page says of it, line by line: the lease and the declaration in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from feedq.model import Event, FeedView
from feedq.report import masked
from feedq.telemetry import mask_url
from feedq.wording import duration, printable, size


@dataclass(frozen=True, slots=True)
class DetailLine:
    """A name and what stands beside it, on one line; ``code`` keeps its line breaks.

    What cannot be printed is written as an escape: much of it comes from sources, and a character that turns the
    direction of writing would let them rewrite the page.
    """

    name: str
    text: str
    code: bool = False

    def __post_init__(self) -> None:
        lines = self.text.split("\n") if self.code else [self.text]
        object.__setattr__(self, "text", "\n".join(map(printable, lines)))


def lease_lines(view: FeedView, *, now: datetime, workers: Mapping[UUID, str]) -> Iterator[DetailLine]:
    """``workers`` are names, of those that are there."""
    lease = view.lease
    yield DetailLine("State", lease.state)
    if lease.reason is not None:
        yield DetailLine("Reason", lease.reason)
    yield DetailLine("Epoch", str(lease.epoch))
    if view.worker is not None:
        yield DetailLine("Worker", view.worker)
    if lease.promised_to is not None:
        yield DetailLine("Goes on to", workers.get(lease.promised_to, "a worker that is gone by now"))
    yield from moment("To let go by", lease.stop_by, now)
    if lease.held_for is not None:
        yield DetailLine("Kept for a successor of", lease.held_for)
    yield from moment("Assigned", lease.assigned_at, now)
    yield from moment("Running since", lease.running_since, now)
    yield from moment("Next try", lease.retry_at, now)
    if lease.attempts:
        yield DetailLine("Failures in a row", str(lease.attempts))
    if lease.failures:
        yield DetailLine("Since it last landed a record", f"{lease.failures} failures")
    if lease.avoid:
        yield DetailLine("Failed on", ", ".join(lease.avoid))
    if lease.last_error is not None:
        yield DetailLine("Last error", mask_url(lease.last_error))
    yield from moment("Last error at", lease.last_error_at, now)
    if lease.sink_error is not None:
        yield DetailLine("Sink", mask_url(lease.sink_error))
    if lease.dead_letter_error is not None:
        yield DetailLine("Latest dead letter", mask_url(lease.dead_letter_error))
    yield from moment("Latest dead letter at", lease.dead_letter_at, now)
    if lease.quarantined or lease.blamed:
        yield DetailLine("Workers lost to it", str(lease.blamed))
        yield DetailLine("How the last was lost", mask_url(lease.blame or "nobody knows"))
    yield from moment("Last lost at", lease.blamed_at, now)
    yield DetailLine("Bytes", size(lease.bytes_total))
    yield from moment("Last record", lease.last_record_at, now)
    if lease.cursor is not None:
        yield DetailLine("Cursor", as_json(lease.cursor), code=True)


def declaration_lines(view: FeedView, *, now: datetime) -> Iterator[DetailLine]:
    feed, lease, spec = view.feed, view.lease, view.feed.spec
    yield DetailLine("Connector", spec.connector)
    yield DetailLine("Source", as_json(spec.source, indented=True), code=True)
    yield DetailLine("Sink", as_json(spec.sink, indented=True), code=True)
    yield DetailLine("Target state", spec.target_state)
    if spec.tenant:
        yield DetailLine("Tenant", spec.tenant)
    if spec.labels:
        yield DetailLine("Labels", _pairs(spec.labels))
    if spec.selector.required:
        yield DetailLine("Requires", _pairs(spec.selector.required))
    if spec.selector.preferred:
        yield DetailLine("Prefers", _pairs(spec.selector.preferred))
    yield DetailLine("Weight", f"{spec.weight:g}")
    running_old = lease.worker_id is not None and lease.generation != feed.generation
    running = f" (running with {lease.generation})" if running_old else ""
    yield DetailLine("Generation", f"{feed.generation}{running}")
    yield from moment("Declared", feed.created_at, now)
    yield from moment("Changed", feed.updated_at, now)
    yield from moment("Removed", feed.removed_at, now)


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items())


def detail(event: Event) -> str:
    """What an event says besides its kind, on one line."""
    parts: Mapping[str, Any] = event.detail
    return printable(
        ", ".join(
            f"{name}: {mask_url(value) if isinstance(value, str) else as_json(value)}"
            for name, value in parts.items()
        )
    )


def as_json(value: Any, *, indented: bool = False) -> str:
    """Plain JSON, passwords of URLs masked."""
    plain = masked(value)
    try:
        return orjson.dumps(plain, default=str, option=orjson.OPT_INDENT_2 if indented else None).decode()
    except TypeError:
        # An integer beyond 64 bits.
        return str(plain)


def stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")


def moment(name: str, at: datetime | None, now: datetime) -> Iterator[DetailLine]:
    """A line for a point in time, if there is one."""
    if at is not None:
        seconds = (now - at).total_seconds()
        distance = f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"
        yield DetailLine(name, f"{stamp(at)} UTC ({distance})")
