"""Hostile sources for every connector, and honest ones at their limits: what they do to the process that reads.

The sources and the process are those of ``tests/hostile``. Resident memory is its highest over what it was before.
A stall is the longest time between two turns of the event loop, and counts as processor time of the loop's thread:
on a machine that does other things the rest of it is theirs. A source that made too long a stall is read again,
twice at most.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.report import Figure, say
from tests.hostile.attacks import ATTACKS, HONEST, Attack
from tests.hostile.victim import ROOT, Harm

GROWTH_MIB = 64.0
STALL_S = 0.25
LIMIT_STALL_S = 0.1
TRIES = 3
SHOWN_CHARACTERS = 60


def measure(directory: Path) -> Iterator[Figure]:
    for connector in dict.fromkeys(attack.connector for attack in ATTACKS):
        attacks = [attack for attack in ATTACKS if attack.connector == connector]
        yield from _figures(attacks, [connector], stall_s=STALL_S)
    yield from _figures(HONEST, ["--limits"], stall_s=LIMIT_STALL_S)


def _figures(attacks: Sequence[Attack], which: list[str], *, stall_s: float) -> Iterator[Figure]:
    harms = _harms(which)
    for attack in attacks:
        harm = harms[attack.name]
        tries = 1
        while harm.stall_cpu_s > stall_s and tries < TRIES:
            more = ["--limits"] if "--limits" in which else []
            harm = min(harm, _harms([attack.name, *more])[attack.name], key=lambda each: each.stall_cpu_s)
            tries += 1
        ends_well = (attack.goes_on and not harm.kind) or (bool(harm.kind) and attack.says in harm.error)
        is_honest = "--limits" in which
        ok = (
            harm.stall_cpu_s <= stall_s
            and not harm.unexpected
            and (is_honest or harm.growth_mib <= GROWTH_MIB)
        )
        grows = "" if is_honest else f", <= {GROWTH_MIB:g} MiB"
        said = harm.error[:SHOWN_CHARACTERS] or "reads on"
        yield Figure(
            attack.name,
            f"stall <= {stall_s:g} s{grows}",
            f"{harm.stall_cpu_s:.3f} s ({harm.stall_s:.3f} s by the clock), {harm.growth_mib:.0f} MiB: {said}",
            ok and (is_honest or ends_well),
        )


def _harms(which: list[str]) -> dict[str, Harm]:
    say(f"hostile: {' '.join(which)}")
    command = [sys.executable, "-m", "tests.hostile.victim", *which]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return {harm.name: harm for harm in (Harm(**json.loads(line)) for line in done.stdout.splitlines())}
