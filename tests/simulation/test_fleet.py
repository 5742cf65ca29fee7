"""A fleet under random faults, seed by seed; `python -m tests.simulation` runs thousands of them.

After every step the invariants of `FakeFleet.check` hold. At the end everything that was broken is mended, and
then every feed must stream and every record must land.
"""

from __future__ import annotations

import pytest

from tests.simulation.trouble import Trouble, run_seed

pytestmark = pytest.mark.usefixtures("control")


@pytest.mark.parametrize("seed", range(12))
def test_no_fault_loses_or_doubles_a_record_and_everything_heals(seed: int) -> None:
    print(f"replay with: make simulate SEED={seed}")
    run_seed(seed)


def test_a_seed_is_the_same_story_every_time() -> None:
    def story() -> str:
        trouble = Trouble(7)
        for _ in range(100):
            trouble.step()
        return trouble.fleet.transcript

    assert story() == story()
