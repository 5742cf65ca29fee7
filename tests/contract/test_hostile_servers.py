"""Hostile sources for every connector: memory stays bounded, the loop turns, and one error says what is wrong.

The sources are read in processes of their own (`tests.hostile.victim`), side by side. Clocks on a busy
machine prove little: the bound on a stall is generous here, and in processor time. The figures come from
`make bench ARGS=hostile`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

from tests.hostile.attacks import ATTACKS, HONEST, Attack
from tests.hostile.victim import ROOT, Harm

GROWTH_MIB = 64.0
STALL_CPU_S = 2.0
ERROR_CHARACTERS_MAX = 1000
TIMEOUT_S = 240
VICTIMS = 4
"""Most sources take less time than it takes to start a process, and some do nothing for a second."""


@cache
def harms(attacks: tuple[Attack, ...], *options: str) -> dict[str, Harm]:
    """What each source did."""

    def read(names: list[str]) -> list[Harm]:
        command = [sys.executable, "-m", "tests.hostile.victim", *options, *names]
        done = subprocess.run(
            command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert not done.stderr, done.stderr
        return [Harm(**json.loads(line)) for line in done.stdout.splitlines()]

    with ThreadPoolExecutor(VICTIMS) as threads:
        shares = threads.map(read, [names(attacks)[n::VICTIMS] for n in range(VICTIMS)])
        return {harm.name: harm for share in shares for harm in share}


def names(attacks: tuple[Attack, ...]) -> list[str]:
    return [attack.name for attack in attacks]


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("attack", ATTACKS, ids=names(ATTACKS))
def test_a_hostile_source_harms_its_own_feed_only(attack: Attack) -> None:
    harm = harms(ATTACKS)[attack.name]
    assert harm.growth_mib <= GROWTH_MIB
    assert harm.stall_cpu_s <= STALL_CPU_S
    assert harm.unexpected == []
    if attack.goes_on and not harm.kind:
        return
    assert harm.kind, "it ended with no error"
    assert attack.says in harm.error
    assert attack.goes_on or not attack.says or harm.kind == attack.kind.__name__
    assert len(harm.error) <= ERROR_CHARACTERS_MAX


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("honest", HONEST, ids=names(HONEST))
def test_an_honest_source_at_its_limit_is_read(honest: Attack) -> None:
    harm = harms(HONEST, "--limits")[honest.name]
    assert harm.stall_cpu_s <= STALL_CPU_S
    assert harm.unexpected == []
    assert harm.kind in ("", "SourceUnavailable"), harm.error
    assert harm.records
