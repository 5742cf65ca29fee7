"""A rollout from another commit to this one and back, and what went wrong meanwhile.

By hand only (``make bench ARGS="releases --before COMMIT"``, four minutes; without a commit it is the one before).
Workers and beats of both commits share feeds, and schedules that tick every second, for a minute after the new
ones have joined the old, and for another minute after the old ones have come back to the new.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.before import checked_out
from bench.report import Figure, at_most, say
from bench.servers import running
from feedq.control.store import migrate
from feedq.control.store.database import connect_once
from tests import releases
from tests.chaos import ticking
from tests.cluster import Place
from tests.invariants import landed

SIDE_BY_SIDE_S: Final = 60.0
LAND_S: Final = 20.0
TABLES: Final = """
    SELECT concat_ws(' ', attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull,
        pg_get_expr(adbin, adrelid)) AS made
    FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE relnamespace = 'feedq'::regnamespace AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
    UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'feedq'
    UNION ALL SELECT conrelid::regclass || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'feedq'::regnamespace
    UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'feedq'::regnamespace
    UNION ALL SELECT 'revision ' || version_num FROM feedq.alembic_version
    ORDER BY 1
"""


def measure(directory: Path, *, commit: str = "HEAD~1") -> Iterator[Figure]:
    with running(directory) as (postgres, valkey), checked_out(directory, commit) as tree:
        releases.set_apart(tree)
        before, now = (postgres.create_database(name) for name in ("before", "now"))
        with Place(directory, before, valkey.url()).cluster(migrate=False, forks=False, tree=tree) as old:
            old.feedq("db", "upgrade")
        migrate.upgrade(now)
        if different := _of_one_revision(before, now):
            found = f"{len(different)} differ, {different[0]} for one: name a commit with the same tables"
            case = f"{commit} and this commit side by side"
            yield Figure(case, "the same tables by the same revision", found, ok=False)
            return
        place = Place(directory, postgres.create_database("rollout"), valkey.url())
        with releases.begun(place, tree) as rollout:
            _roll(rollout)
            yield from _losses(rollout, commit)


def _of_one_revision(before: str, now: str) -> list[str]:
    """What only one of two databases has, if their tables are of the same revision."""
    made = []
    for url in (before, now):
        with connect_once(url) as connection:
            made.append({row.made for row in connection.execute(TABLES)})
    revisions = [{row for row in rows if row.startswith("revision ")} for rows in made]
    return sorted(made[0] ^ made[1]) if revisions[0] == revisions[1] else []


def _roll(rollout: releases.Rollout) -> None:
    rollout.join(rollout.before)
    releases.migrate(rollout.after)
    rollout.join(rollout.after)
    say(f"releases: this commit has joined the one before; side by side for {SIDE_BY_SIDE_S:g} s")
    time.sleep(SIDE_BY_SIDE_S)
    rollout.leave(rollout.before)
    rollout.join(rollout.before)
    say(f"releases: the commit before has come back; side by side for {SIDE_BY_SIDE_S:g} s")
    time.sleep(SIDE_BY_SIDE_S)
    rollout.leave(rollout.after)


def _losses(rollout: releases.Rollout, commit: str) -> Iterator[Figure]:
    sent = rollout.source.sent()
    give_up = time.monotonic() + LAND_S
    while (lands := landed(rollout.after)) and time.monotonic() < give_up:
        if all(name in lands and lands[name].last >= sent[name] for name in rollout.feeds):
            break
        time.sleep(0.1)
    rows = [lands[name] for name in rollout.feeds if name in lands]
    missing = sum(sent[name] for name in rollout.feeds if name not in lands)
    late = sum(max(0, sent[name] - lands[name].last) for name in rollout.feeds if name in lands)
    lost = missing + late + sum(row.last - row.distinct for row in rows)
    rollout.end_runs()
    try:
        account, wrong = str(ticking.account(rollout.after, rollout.first)), 0
    except ticking.Violated as violated:
        account, wrong = str(violated.wrong), sum(violated.wrong.values())
    beside = f"{commit} and this commit side by side"
    yield at_most(f"{beside}: records lost", 0, lost, "", runs=f"of {sum(row.distinct for row in rows)}")
    yield at_most(f"{beside}: records doubled", 0, sum(row.count - row.distinct for row in rows), "")
    yield at_most(f"{beside}: ticks or effects lost or doubled", 0, wrong, "", runs=account)
    yield at_most(f"{beside}: runs wrongly ended", 0, len(ticking.wrongly_ended(rollout.after)), "")
