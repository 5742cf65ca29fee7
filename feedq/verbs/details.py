"""What `show` and a page of its own say of one feed, schedule or worker, and as what people may see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from feedq.core.authorship import BY
from feedq.core.model import JSON, Event, FeedView, Lease, LeaseState, WorkerView
from feedq.core.notices import notice_sentences
from feedq.core.passwords import mask_url, masked
from feedq.core.schedule.model import RunState
from feedq.core.schedule.spec import is_secret
from feedq.verbs import wording
from feedq.verbs.wording import as_json, counted, duration, pairs, percent, printable, printable_lines, size

if TYPE_CHECKING:
    from feedq.verbs.feeds import FeedDocument
    from feedq.verbs.schedules import ScheduleDocument

CHANGES = "changes"
"""Key of what an edit has changed, in the detail of its event."""


MASK = "***"
LEASE_TEXTS = ("dead_letter_error", "last_error", "sink_error", "blame", "event_fault")
"""What a lease has of others' words."""
DUE = {
    LeaseState.IDLE: "retry at",
    LeaseState.ASSIGNED: "to be claimed by",
    LeaseState.STOPPING: "to let go by",
}
"""What the deadline of a lease means."""
Fact = tuple[str, str | None]
"""A name and what stands beside it; nothing does where there is no value, and then it is not shown."""


def shown_facts(facts: Iterable[Fact]) -> list[tuple[str, str]]:
    """Facts as people may see them.

    What cannot be printed is written as an escape: much of it comes from sources, and a character that turns the
    direction of writing would let them rewrite the page, or steer the terminal.
    """
    return [(name, printable(text)) for name, text in facts if text]


def declaration_text(declaration: Any) -> str:
    """What is declared, as a manifest would have it."""
    from feedq.verbs import documents  # which loads YAML; most commands show none

    return printable_lines(documents.dump(declaration).rstrip("\n"))


def _moment(at: datetime | None, now: datetime) -> str | None:
    return None if at is None else wording.moment(at, now=now)


def _said(text: str | None, at: datetime | None = None, now: datetime | None = None) -> str | None:
    """Quotes what somebody else said, and when; None if nothing was."""
    if text is None:
        return None
    if at is not None and now is not None:
        text += f" ({wording.stamp(at)}, {wording.distance(at, now=now)})"
    return mask_url(text)


# -- feeds and workers -------------------------------------------------------------------------------


def feed_lines(found: FeedDocument, *, now: datetime) -> list[Fact]:
    """Tells how a feed fares."""
    view, goes_to = found.view, found.goes_to
    lease, feed, spec = view.lease, view.feed, view.feed.spec
    if lease.promised_to is not None:
        goes_to = goes_to or "a worker that is gone"
    running_old = lease.worker_id is not None and lease.generation < feed.stream_generation
    avoid = f", on {', '.join(lease.avoid)}" if lease.avoid else ""
    return [
        *(("not as expected", _said(one.said, one.since, now)) for one in view.unmet),
        ("lease", lease.state),
        ("reason", lease.reason),
        ("last error", _said(lease.last_error, lease.last_error_at, now)),
        ("attempts", f"{lease.attempts} failed in a row" if lease.attempts else None),
        (
            "failures",
            f"{lease.failures} in a row, with nothing landed since{avoid}" if lease.failures else None,
        ),
        ("sink error", _said(lease.sink_error)),
        ("quarantined", _blamed(lease, now)),
        ("worker", view.worker),
        ("moving to", goes_to),
        (DUE.get(lease.state, ""), _moment(lease.due_at, now)),
        ("reserved for the successor of", lease.held_for),
        ("epoch", str(lease.epoch)),
        ("running since", _moment(lease.running_since, now)),
        ("records", f"{lease.records_total:,} ({size(lease.bytes_total)})"),
        ("landing", f"{lease.rows_per_s:,.1f} rows/s, {size(lease.bytes_per_s)}/s"),
        ("dead letters", f"{lease.dead_letters:,}" if lease.dead_letters else None),
        (
            "latest refused",
            _said(lease.dead_letter_error, lease.dead_letter_at, now) if lease.dead_letters else None,
        ),
        ("last record", _moment(lease.last_record_at, now)),
        ("event time", _moment(lease.event_at, now)),
        ("no event time", _said(lease.event_fault)),
        *(("noticed", _said(one)) for one in notice_sentences(lease.noticed)),
        ("cursor", None if lease.cursor is None else as_json(masked(lease.cursor))),
        ("weight", None if lease.weight == spec.weight else f"{lease.weight:.3g}, as measured"),
        ("catalog", feed.catalog),
        (
            "generation",
            f"{feed.generation}" + (f" (running with {lease.generation})" if running_old else ""),
        ),
        ("created", _moment(feed.created_at, now)),
        ("updated", _moment(feed.updated_at, now)),
        ("removed", _moment(feed.removed_at, now)),
    ]


def _blamed(lease: Lease, now: datetime) -> str | None:
    if not (lease.blamed or lease.quarantined):
        return None
    lost = f"{counted(lease.blamed, 'worker')} lost to it, the last at "
    lost += _moment(lease.blamed_at, now) or "an unknown time"
    return f"{'yes' if lease.quarantined else 'no'}; {lost}: {_said(lease.blame) or 'cause unknown'}"


def worker_lines(view: WorkerView, *, now: datetime) -> list[Fact]:
    worker, load = view.worker, view.worker.load
    return [
        ("name", worker.name),
        ("id", str(worker.id)),
        ("state", worker.state),
        ("why", wording.worker_trouble(view)),
        ("target state", worker.target_state),
        ("feeds", f"{view.leases} of {worker.capacity} ({percent(view.leases, worker.capacity)})"),
        ("load", f"{view.load:,.4g}, the sum of their weights"),
        ("job slots", str(worker.job_slots)),
        ("landing", f"{load.rows_per_s:,.0f} rows/s, {size(load.bytes_per_s)}/s"),
        ("host", worker.host),
        ("pid", str(worker.pid)),
        ("queue", worker.queue),
        ("version", worker.version),
        ("labels", pairs(worker.labels)),
        ("started", _moment(worker.started_at, now)),
        ("heartbeat", f"{duration(view.heartbeat_age_s)} ago"),
        ("cpu", f"{load.cpu:.2f} cores"),
        ("rss", size(load.rss)),
        ("loop lag", f"{1000 * load.loop_lag_s:.0f} ms"),
        ("writes to", ", ".join(load.sinks_up)),
        ("suspected", _moment(worker.suspected_at, now)),
    ]


def changes_of(event: Event) -> list[tuple[str, str, str]]:
    """Returns the options that an edit has changed, with what they were and became; nothing if not given."""
    changes = event.detail.get(CHANGES, {})
    return [(printable(option), _brief(before), _brief(after)) for option, (before, after) in changes.items()]


def _brief(value: Any) -> str:
    return "" if value is None else printable(as_json(masked(value)))


def event_detail(event: Event) -> str:
    """Tells what an event says besides its kind, on one line; at the end who asked for it, from where and why."""
    facts = [
        f"{name}={as_json(masked(value))}"
        for name, value in event.detail.items()
        if name not in (BY, CHANGES) and not (name == "changed" and event.detail.get(CHANGES))
    ]
    facts += [
        f"{option}: {before or '(unset)'} → {after or '(unset)'}"
        for option, before, after in changes_of(event)
    ]
    if author := author_of(event):
        facts.append(f"by {author}")
    return printable(", ".join(facts))


def author_of(event: Event) -> str:
    """Tells who asked for it, from where and why; nothing when nobody is known."""
    author = event.detail.get(BY)
    if not isinstance(author, Mapping):
        return ""
    why = f": {masked(author['why'])}" if "why" in author else ""
    return printable(f"{author.get('who')} from {author.get('from')}{why}")


# -- schedules ---------------------------------------------------------------------------------------


def schedule_lines(found: ScheduleDocument, *, now: datetime) -> list[Fact]:
    """Tells where a schedule stands."""
    row = found.schedule
    is_jittered = row.next_fire_at is not None and row.next_fire_at != row.next_tick_at
    runs = ", ".join(f"{found.counts[state]:,} {state}" for state in RunState if found.counts.get(state))
    return [
        ("name", row.name),
        ("state", row.state),
        ("paused because", row.pause_reason),
        ("paused until", _moment(row.paused_until, now)),
        ("cannot run", found.unserved),
        ("when", row.when),
        ("next tick", _moment(row.next_tick_at, now)),
        ("fires", f"{_moment(row.next_fire_at, now)}, with its jitter" if is_jittered else None),
        ("waiting", f"{row.waiting:,}"),
        ("running", f"{row.running:,}"),
        ("runs", runs or "none"),
        ("failures", f"{row.failures:,} in a row" if row.failures else None),
        ("generation", found.etag.partition(".")[2]),
        ("created", _moment(found.created_at, now)),
        ("updated", _moment(found.updated_at, now)),
    ]


# -- secrets -------------------------------------------------------------------------------------------


def masked_view(view: FeedView) -> FeedView:
    """A feed as people may see it: in its declaration, and in what others have written about it."""
    feed, lease = view.feed, view.lease
    spec = feed.spec
    options = {"source": masked(spec.source), "sink": masked(spec.sink)}
    if options != {"source": spec.source, "sink": spec.sink}:
        feed = replace(feed, spec=spec.model_copy(update=options))
    said: dict[str, Any] = {
        name: mask_url(text) for name in LEASE_TEXTS if (text := getattr(lease, name)) is not None
    }
    return replace(
        view,
        feed=feed,
        lease=replace(lease, **said) if said else lease,
        because=None if view.because is None else mask_url(view.because),
    )


def shown(value: Any) -> JSON:
    """Shows arguments of a job as people may see them: what a name gives away as a secret is masked.

    Declaring one is refused already; this is for those that got in by another way. A reference shows as it is.
    """
    if isinstance(value, Mapping):
        return {
            str(key): MASK if is_secret(str(key), inner) else shown(inner) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [shown(inner) for inner in value]
    plain: JSON = masked(value)
    return plain
