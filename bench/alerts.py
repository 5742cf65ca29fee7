"""How soon somebody is told of a feed that is not as expected, for each cause at once, on real processes.

Two workers have six feeds with a cause each and ten others; the frozen worker is a third one. A feed may be
silent, or lag, for 30 s, and 1 % of the records of 30 s may be refused; the elected beat looks every 10 s. All
else is at its default but for the pause between two messages to one address, 5 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.report import Figure, say
from bench.servers import running
from feedq.control.leader_threads import JUDGE_EVERY_S
from tests.causes import KINDS, causes, name_of, wanted

BOUND_S = 30.0
LIMIT_S = 90.0


def measure(directory: Path) -> Iterator[Figure]:
    env = {"FEEDQ_ALERT_INTERVAL_S": "5"}
    with (
        running(directory) as (control, valkey),
        causes(
            directory, database_url=control.url(), broker_url=valkey.url(), bound_s=BOUND_S, env=env
        ) as made,
    ):
        say("alerts: all stream")
        made.begin()
        begun = made.observe(begins=True, limit_s=LIMIT_S)
        found = made.alerts()
        say("alerts: all are told")
        made.end()
        ended = made.observe(begins=False, limit_s=LIMIT_S)
        found += made.alerts()
    for cause in KINDS:
        of_it = [begins for name, _, begins in found if name == name_of(cause)]
        begin, end = begun[cause], ended[cause]
        yield Figure(
            f"{cause}, bound {BOUND_S:g} s, a look each {JUDGE_EVERY_S:g} s",
            f"told <= {2 * BOUND_S:g} s, 1 alert, 1 recovery",
            f"told {begin.told_s:.1f} s (found {begin.found_s:.1f}), its end {end.told_s:.1f} s; "
            f"{of_it.count(True)} and {of_it.count(False)}",
            begin.told_s <= 2 * BOUND_S and sorted(of_it) == [False, True],
        )
    others = len(found) - len(wanted(begins=True)) - len(wanted(begins=False))
    yield Figure("all others", "0 alerts", f"{others}", others == 0)
