"""A rollout and a way back: workers and beats of two releases on one database, and nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import releases
from tests.cluster import CommandFailed, Place

pytestmark = pytest.mark.timeout(240)


def test_two_releases_run_side_by_side_both_ways(
    tmp_path: Path, database_url: str, broker_url: str, measured: Callable[[str, object], None]
) -> None:
    place = Place(tmp_path, database_url, broker_url)
    with releases.begun(place, releases.copy_of_this(tmp_path)) as rollout:
        before, after = rollout.before, rollout.after
        rollout.join(before)
        releases.migrate(after)
        rollout.join(after)
        rollout.leave(before)
        # It was a mistake: back to the release before.
        with pytest.raises(CommandFailed, match="made by a newer release of feedq than this one"):
            releases.migrate(before)
        rollout.join(before)
        rollout.leave(after)
        measured("two releases side by side", rollout.check())
