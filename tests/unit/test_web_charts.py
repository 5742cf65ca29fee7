"""What pages show in pictures, from which names cannot break out: history of a feed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4
from xml.etree import ElementTree

from feedq.control.store.history import ListedEvent
from feedq.core.landed import LandedBucket, Span
from feedq.core.model import Event
from feedq.telemetry.event_names import EventKind
from feedq.web.charts import HEIGHT, LEAST, WIDTH, OwnerChart, landed_charts, owner_chart, sparkline

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SVG = "{http://www.w3.org/2000/svg}"
ANNA, BERTA = uuid4(), uuid4()


def rects(svg: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')).findall(
        f"{SVG}rect"
    )


def bucket(minute: int, rate: float | None) -> LandedBucket:
    at = NOON + timedelta(minutes=minute)
    return LandedBucket(at) if rate is None else LandedBucket(at, int(60 * rate), rate, 0, None)


def event(minute: float, kind: EventKind, worker: UUID | None = None) -> Event:
    at = NOON + timedelta(minutes=minute)
    return Event(at, kind, feed_id=1, worker_id=worker, epoch=1, detail={})


def drawn(events: Sequence[Event], *, minute: float) -> OwnerChart:
    names = {ANNA: "anna", BERTA: '"><script>'}
    listed = [
        ListedEvent(n, one, "f", None if one.worker_id is None else names[one.worker_id])
        for n, one in enumerate(events)
    ]
    found = owner_chart(listed, now=NOON + timedelta(minutes=minute))
    assert found is not None
    return found


def test_a_bar_is_as_high_as_its_part_of_the_highest_and_a_gap_is_none() -> None:
    charts = landed_charts(
        [bucket(0, 10.0), bucket(1, None), bucket(2, 5.0), bucket(3, 0.001), bucket(4, 0.0)], Span.HOUR
    )
    found = [(r.get("class"), float(r.get("height", ""))) for r in rects(charts[0].svg)]
    assert found == [
        ("feedq-bar", HEIGHT),
        ("feedq-gap", HEIGHT),
        ("feedq-bar", HEIGHT / 2),
        ("feedq-bar", LEAST),
        ("feedq-bar", 0),
    ]
    assert charts[0].said == "at most 10/s in the last hour, 0/s at its end"
    assert charts[1].said == "nothing known of the last hour"


def test_a_sparkline_has_a_bar_for_each_minute_in_which_something_landed() -> None:
    svg = sparkline([bucket(0, 10.0), bucket(1, None), bucket(2, 5.0), bucket(3, 0.0), bucket(4, 0.001)])
    assert 'd="M5 100V0M25 100V50M45 100V98"' in svg
    assert "Last 5 minutes: at most 10 rows/s, at the end 0.001" in svg
    assert sparkline([bucket(0, None)]) == ""


def test_an_owner_has_a_feed_from_its_claim_to_the_end_of_its_lease() -> None:
    events = [
        event(8, EventKind.LEASE_CLAIMED, BERTA),
        event(6, EventKind.LEASE_RELEASED, ANNA),
        event(2, EventKind.LEASE_CLAIMED, ANNA),
        event(0, EventKind.FEED_ADDED),
    ]
    chart = drawn(events, minute=10)
    owners = [r for r in rects(chart.svg) if (r.get("class") or "").startswith("feedq-owner")]
    assert [(r.get("x"), r.get("width")) for r in owners] == [
        (f"{0.2 * WIDTH}", f"{0.4 * WIDTH}"),
        (f"{0.8 * WIDTH}", f"{0.2 * WIDTH}"),
    ]
    assert [r.get("class") for r in owners] == [colour for _, colour in chart.owners]
    assert "<script>" not in chart.svg
