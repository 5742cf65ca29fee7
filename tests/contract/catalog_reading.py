"""A catalog of any kind as a test reads it: its feeds, and what is wrong with it."""

from __future__ import annotations

from typing import Any

from feedq.settings import Settings
from feedq.verbs.catalogs.base import FeedCatalog, open_catalog
from feedq.verbs.manifests import Manifest

DEFAULTS = {"connector": "tcp", "sink": {"table": "t"}}


def opened(**options: Any) -> FeedCatalog:
    return open_catalog("crm", Settings(catalogs={"crm": {"defaults": DEFAULTS, **options}}))


def manifest(catalog: FeedCatalog) -> Manifest:
    return catalog.read(Settings())


def feeds(catalog: FeedCatalog) -> list[dict[str, Any]]:
    """What the feeds say besides the defaults, by name."""
    found = manifest(catalog)
    assert not found.problems
    said = [feed.spec.plain() for feed in found.feeds]
    return sorted(
        ({key: value for key, value in one.items() if key not in DEFAULTS} for one in said),
        key=lambda one: str(one["name"]),
    )


def mistakes(catalog: FeedCatalog) -> list[str]:
    return [str(problem) for problem in manifest(catalog).problems]
