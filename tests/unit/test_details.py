"""What a feed's page says, line by line."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from feedq.core.model import ANYWHERE, Event, Feed, FeedSpec, FeedView, Lease, LeaseState, Selector
from feedq.core.passwords import masked
from feedq.verbs.details import declaration_text, event_detail, feed_lines, shown_facts
from feedq.verbs.feeds import FeedDocument
from feedq.verbs.wording import why
from tests.fakes.clock import NEW_YEAR
from tests.fakes.sink import IDENTITY
from tests.fakes.standing import standing

NOW = NEW_YEAR


def view(lease: Lease, *, selector: Selector = ANYWHERE, **source: object) -> FeedView:
    keys = {"name": "acme/orders", "connector": "tcp", "source": source, "sink": {"table": "orders"}}
    spec = FeedSpec.of(keys | {"labels": {"region": "eu"}, "selector": selector})
    feed = Feed(1, spec, 3, NOW - timedelta(days=1), NOW - timedelta(hours=2), IDENTITY)
    found = standing(feed, lease, None, now=NOW)
    return FeedView(feed, lease, "w1@host" if lease.worker_id else None, found.status, found.because)


def document(of: FeedView) -> FeedDocument:
    return FeedDocument(of, None, None, {}, "1.1")


def test_passwords_of_urls_are_masked_wherever_they_got_in() -> None:
    url = "postgresql://u:hunter2@db/x"
    leaky = Lease(1, last_error=f"cannot reach {url}", cursor={"from": url})
    shown = [
        *(text for _, text in shown_facts(feed_lines(document(view(leaky)), now=NOW))),
        declaration_text(masked({"source": {"url": url}})),
        event_detail(Event(NOW, "x", detail={"a": url, "b": [url]})),
    ]
    text = "\n".join(shown)
    assert "hunter2" not in text
    assert text.count("postgresql://u:***@db/x") == 5


def test_a_cursor_beyond_64_bits_is_shown_all_the_same() -> None:
    assert dict(feed_lines(document(view(Lease(1, cursor=2**70))), now=NOW))["cursor"] == str(2**70)


def test_dead_letters_stand_beside_what_holds_a_feed_up_with_their_reason_when_nothing_does() -> None:
    refused: dict[str, Any] = {
        "dead_letters": 1_234,
        "dead_letter_at": NOW - timedelta(seconds=3),
        "dead_letter_error": "too long: \u202epostgresql://u:pw@db/x",
    }
    streams = Lease(1, state=LeaseState.RUNNING, connected=True, **refused)
    latest = "1,234 dead letters, the latest 3.0s ago"
    assert why(view(streams), now=NOW) == f"{latest}: too long: \\u202epostgresql://u:***@db/x"
    silent = replace(streams, stalled=True, last_error="silent for 60 s", dead_letters=1)
    assert why(view(silent), now=NOW) == "silent for 60 s; 1 dead letter, the latest 3.0s ago"
    assert why(view(Lease(1, state=LeaseState.RUNNING, connected=True)), now=NOW) == ""


def test_what_a_source_sent_cannot_steer_the_page() -> None:
    nasty = "a\x00b\x1b[2J\u202egnp\nc"
    lease = Lease(
        *(1, 4, LeaseState.RUNNING, None, uuid4()),
        last_error=nasty,
        dead_letters=1,
        dead_letter_error=nasty,
        sink_error=nasty,
        blame=nasty,
        blamed=1,
        cursor={nasty: nasty},
    )
    shown = [
        *(text for _, text in shown_facts(feed_lines(document(view(lease)), now=NOW))),
        declaration_text({"source": {"x": nasty}}),
        event_detail(Event(NOW, "x", detail={"why": nasty, "all": [nasty]})),
    ]
    assert sum("gnp" in text for text in shown) == 7
    for text in shown:
        assert all(c.isprintable() or c == "\n" for c in text), text
