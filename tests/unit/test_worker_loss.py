"""What the loss of a worker would do, and which worker is a hot spot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from feedq.model import FeedView, Reason, WorkerView
from feedq.placement.base import Rules
from feedq.report.worker_loss import WorkerLoss, loss_document, loss_of
from feedq.web.pages import hot_spot
from tests.unit.test_diagnosis import NOW, running, worker

LOST, SMALL, LARGE = (
    worker("lost", feeds=3),
    worker("small", feeds=1, capacity=2),
    worker("large", feeds=1, capacity=9),
)


def fed(count: int, **options: Any) -> list[FeedView]:
    views = [running(f"f{n}", LOST.worker.id, **options) for n in range(count)]
    return [replace(view, feed=replace(view.feed, id=n)) for n, view in enumerate(views, 1)]


def lost(feeds: Sequence[FeedView], *others: WorkerView, rules: Rules | None = None) -> WorkerLoss:
    held = {view.worker.id: {"acme": 1} for view in others}
    return loss_of(LOST, feeds, [LOST, *others], held, now=NOW, rules=rules or Rules(settle_s=60))


def test_the_others_get_its_feeds_as_far_as_they_have_room() -> None:
    found = lost(fed(4), SMALL, LARGE)
    assert (found.feeds, found.placed, found.unplaced) == (4, 4, {})
    assert sum(one.gets for one in found.others) == 4
    assert all(one.feeds <= one.capacity for one in found.others)
    assert lost(fed(4), SMALL).unplaced == {Reason.NO_CAPACITY: 3}
    assert loss_document(lost(fed(4), SMALL))["unplaced"] == {"no_capacity": 3}


def test_labels_and_caps_of_tenants_are_kept_to() -> None:
    assert lost(fed(2, required={"region": "moon"}), LARGE).unplaced == {Reason.NO_MATCH: 2}
    rules = Rules(tenant_caps={"acme": 2})
    assert lost(fed(3, tenant="acme"), LARGE, rules=rules).unplaced == {Reason.NO_CAPACITY: 2}


def test_a_hot_spot_is_named_with_its_share() -> None:
    even = [replace(SMALL, load=2.0), replace(LARGE, load=9.0)]
    assert hot_spot(even) == "none: the fullest has 1.00 times the mean load"
    assert hot_spot([replace(SMALL, load=2.0), replace(LARGE, load=1.0)]).startswith("small")
    assert hot_spot([]) == "none"
