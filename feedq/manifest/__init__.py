"""Manifests: text in, declarations with their positions out; and the way back.

A manifest is YAML or JSON, one document or several, each a mapping with lists of ``feeds``, ``schedules``,
``queues`` and ``calendars``.

Reading goes on after a mistake, so that all of them can be told at once: `parse` never raises, it returns
problems, each with its file and line (or the number of the feed, in JSON). Whether the options of a feed suit its
connector and sink, `option_problems` says.
"""

from feedq.manifest.changes import (
    ABSENT,
    Action,
    Change,
    DeclarationChanges,
    OptionChange,
    difference,
    plain_difference,
    plan,
    plan_calendars,
    plan_queues,
    plan_schedules,
)
from feedq.manifest.feed_entry import FeedEntry, option_problems, plain_feed, problems, validate
from feedq.manifest.reader import (
    ENTRIES,
    ENTRIES_MAX,
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
    "ABSENT",
    "ENTRIES",
    "ENTRIES_MAX",
    "Action",
    "Change",
    "Declaration",
    "DeclarationChanges",
    "FeedEntry",
    "Manifest",
    "ManifestProblem",
    "OptionChange",
    "difference",
    "dump",
    "dump_parts",
    "join",
    "option_problems",
    "parse",
    "parse_specs",
    "plain_difference",
    "plain_feed",
    "plan",
    "plan_calendars",
    "plan_queues",
    "plan_schedules",
    "problems",
    "validate",
]
