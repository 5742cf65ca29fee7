"""Feeds in trouble at their sink: their own dead letters or error, and nothing that a neighbour would notice."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster import wait_until
from tests.trouble import CASES, troubled

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]

SILENT_MAX_S = 3.0
"""On a busy machine, with all cases at once; one at a time it is below 1 s: `make bench ARGS=trouble`."""
LIMIT_S = 60.0


def test_neighbours_of_feeds_in_trouble_land_on_and_the_trouble_is_told(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    errors, refusals = [c for c in CASES if not c.dead], [c for c in CASES if c.dead]
    (locked,) = [case for case in CASES if case.table == "locked"]
    with troubled(tmp_path, database_url=database_url, broker_url=broker_url) as stage:
        stage.add(*errors)
        stage.wait_landed(*errors)
        began = stage.now()
        with ExitStack() as meddling:
            for case in errors:
                meddling.enter_context(stage.meddling(case))
            stage.add(*refusals)
            stage.wait_shown(*CASES)
            assert stage.longest_silence_s(began) < SILENT_MAX_S
            assert "is locked" in stage.lease(locked)["sink_error"]
            stage.wait_landed(*(case for case in refusals if not case.pours))
        wait_until(lambda: stage.lease(locked)["sink_error"] is None, limit_s=LIMIT_S, what="lands again")
        assert stage.wrong_neighbours() == []
        assert stage.longest_silence_s(began) < SILENT_MAX_S
