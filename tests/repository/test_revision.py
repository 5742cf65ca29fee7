"""The revision that workers ask for is the last migration."""

from __future__ import annotations

from feedq.store import migrate, revision


def test_workers_ask_for_the_last_revision() -> None:
    assert migrate._script().get_current_head() == revision.HEAD
