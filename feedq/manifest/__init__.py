"""Manifests: text in, declarations with their positions out; and the way back.

A manifest is YAML or JSON, one document or several, each a mapping with lists of ``feeds``, ``schedules``,
``queues`` and ``calendars``.

Reading goes on after a mistake, so that all of them can be told at once: `parse` never raises, it returns
problems, each with its file and line (or the number of the feed, in JSON). Whether the options of a feed suit its
connector, and whether a cron expression is one, is not judged here but by `feedq.declaration` and
`feedq.schedule.check`.
"""

from feedq.manifest.changes import (
    JobChange,
    JobPlan,
    difference,
    plan_calendars,
    plan_queues,
    plan_schedules,
)
from feedq.manifest.feed_declarations import FEED_KEYS, plain
from feedq.manifest.jobs import (
    CALENDAR_KEYS,
    QUEUE_KEYS,
    SCHEDULE_KEYS,
    plain_calendar,
    plain_queue,
    plain_schedule,
    queue_problems,
    read_calendar,
    read_schedule,
    schedule_problems,
)
from feedq.manifest.reader import (
    ENTRIES_MAX,
    TOP_KEYS,
    Declaration,
    Manifest,
    ManifestProblem,
    dump,
    dump_parts,
    join,
    parse,
    parse_specs,
)

__all__ = [
    "CALENDAR_KEYS",
    "ENTRIES_MAX",
    "FEED_KEYS",
    "QUEUE_KEYS",
    "SCHEDULE_KEYS",
    "TOP_KEYS",
    "Declaration",
    "JobChange",
    "JobPlan",
    "Manifest",
    "ManifestProblem",
    "difference",
    "dump",
    "dump_parts",
    "join",
    "parse",
    "parse_specs",
    "plain",
    "plain_calendar",
    "plain_queue",
    "plain_schedule",
    "plan_calendars",
    "plan_queues",
    "plan_schedules",
    "queue_problems",
    "read_calendar",
    "read_schedule",
    "schedule_problems",
]
