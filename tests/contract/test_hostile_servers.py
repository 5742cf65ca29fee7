"""Hostile sources for every connector: memory stays bounded, the loop turns, and one error says what is wrong.

The sources are read in a process of their own (`tests.hostile.victim`), one after the other. Clocks on a busy
machine prove little: the bound on a stall is generous here, and in processor time. The figures come from
`make bench ARGS=hostile`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

from tests.hostile.attacks import ATTACKS, Attack
from tests.hostile.honest import HONEST
from tests.hostile.victim import ROOT, Harm

GROWTH_MIB = 64.0
STALL_CPU_S = 2.0
ERROR_CHARACTERS_MAX = 1000
TIMEOUT_S = 240


@cache
def harms(*options: str) -> dict[str, Harm]:
    """What each source did. One process reads all: most take less time than it takes to start one."""
    command = [sys.executable, "-m", "tests.hostile.victim", *options]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert not done.stderr, done.stderr
    found = [Harm(**json.loads(line)) for line in done.stdout.splitlines()]
    return {harm.name: harm for harm in found}


def names(attacks: tuple[Attack, ...]) -> list[str]:
    return [attack.name for attack in attacks]


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("attack", ATTACKS, ids=names(ATTACKS))
def test_a_hostile_source_harms_its_own_feed_only(attack: Attack) -> None:
    harm = harms()[attack.name]
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
    harm = harms("--limits")[honest.name]
    assert harm.stall_cpu_s <= STALL_CPU_S
    assert harm.unexpected == []
    assert harm.kind in ("", "SourceUnavailable"), harm.error
    assert harm.records


def test_there_are_attacks_on_every_connector() -> None:
    assert len(ATTACKS) >= 40
    assert {attack.connector for attack in ATTACKS} == {attack.connector for attack in HONEST}
