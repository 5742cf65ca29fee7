"""Arguments that the verbs of the registry carry out: one example of each, in an order in which all of them work.

They name what a test has to put into its store, see `tests.contract.api_stage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from feedq.verbs.registry import Verb, load, query_of

PREFIX: Final = "/api/v1"
MINE: Final = "acme/a"
PAUSED: Final = "acme/paused"
"""A feed, and a schedule of that name."""
KEYED: Final = "acme/keyed"
FILLING: Final = "acme/filling"
"""Feeds that there can be a backfill of, and is one."""
THEIRS: Final = "beta/b"
FEED: Final = {"connector": "tcp", "source": {"url": "tcp://127.0.0.1:1"}, "sink": {"table": "t"}}
OF_FLEET: Final = (
    *("/workers", "/schedules", "/runs", "/queues", "/status", "/problems", "/doctor"),
    *("/tokens", "/catalogs", "/alerts", "/declarations/schedules", "/declarations/queues"),
)
"""Addresses of what belongs to no tenant: no token over one reaches them."""
MINE_ONLY: Final = {"names": [MINE]}

ARGUMENTS: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    ("list_feeds", {"select": {"statuses": ["waiting", "paused"]}, "limit": 2}),
    ("list_feeds", {"text": "acme"}),
    ("list_feeds", {"text": "acme", "order": "rows", "limit": 1}),
    ("list_landed", {"names": [MINE, THEIRS]}),
    ("count_feeds", {"select": {"tenant": "acme"}, "text": "acme"}),
    ("show_feed", {"name": MINE}),
    ("list_declared_feeds", {"with_cursors": True}),
    ("list_declared_feeds", {"select": {"names": [KEYED, "acme/none"]}}),
    ("list_declared_schedules", {}),
    ("list_declared_queues", {}),
    ("show_cursor", {"name": MINE}),
    ("show_drift", {"name": MINE}),
    ("show_landed", {"name": MINE, "span": "day"}),
    ("list_backfills", {}),
    ("show_backfill", {"name": FILLING}),
    ("list_dead_letters", {"name": MINE, "limit": 1}),
    ("show_dead_letter", {"name": MINE, "id": 1}),
    ("list_schedules", {}),
    ("list_schedules", {"prefix": "night", "runs": 2}),
    ("show_schedule", {"name": "nightly"}),
    ("show_next_ticks", {"name": "nightly", "count": 2, "since": "2026-01-01T00:00:00Z"}),
    ("show_next_ticks", {"name": "new", "declared": '{"task": "a.b", "cron": "@daily"}', "count": 2}),
    ("list_runs", {"states": ["waiting"]}),
    ("show_run", {"id": 1}),
    ("list_queues", {}),
    ("list_workers", {}),
    ("show_worker", {"name": "w@host"}),
    ("show_status", {}),
    ("list_problems", {}),
    ("diagnose_fleet", {}),
    ("try_alerts", {}),
    ("list_events", {"feed": MINE, "limit": 2}),
    ("list_events", {"tenant": "acme", "kinds": ["feed_added"]}),
    ("list_connectors", {}),
    ("show_connector", {"name": "tcp"}),
    ("show_schema", {}),
    ("list_tokens", {}),
    ("list_catalogs", {}),
    ("tap_feed", {"name": MINE, "seconds": 1}),
    ("change_cursor", {"name": MINE, "change": "rewind", "records": 1}),
    ("change_cursor", {"name": MINE, "change": "set", "cursor": {"at": 17}}),
    ("adopt_checkpoint", {"name": MINE, "force": True}),
    ("add_columns", {"name": MINE}),
    ("replay_dead_letters", {"name": MINE, "ids": [1]}),
    ("act_on_feeds", {"action": "move", "select": MINE_ONLY, "worker": "w@host"}),
    ("act_on_feeds", {"action": "restart", "select": {"tenant": "acme", "match": MINE}, "count": 1}),
    ("declare", {"feeds": [FEED | {"name": MINE, "tenant": "acme", "weight": 3}]}),
    ("declare", {"schedules": [{"name": "nightly", "task": "a.b", "every": "1h"}], "prune": True}),
    ("declare", {"queues": [{"name": "reports", "concurrency": 2}]}),
    ("begin_backfill", {"name": KEYED, "begin": 1, "end": 5, "key": "first"}),
    ("cancel_backfill", {"name": FILLING}),
    ("trigger_schedule", {"name": "nightly", "kwargs": {"days": 7}, "key": "once"}),
    ("act_on_schedule", {"name": "nightly", "action": "pause", "until": "2099-01-01T00:00:00Z"}),
    (
        "backfill_schedule",
        {"name": "nightly", "begin": "2026-01-01T00:00:00Z", "end": "2026-01-01T03:00:00Z"},
    ),
    ("cancel_run", {"id": 1}),
    ("act_on_worker", {"name": "w@host", "action": "cordon"}),
    ("add_token", {"name": "another", "role": "viewer", "tenant": "acme"}),
    ("sync_catalog", {"name": "crm"}),
    ("drop_dead_letters", {"name": MINE, "all": True}),
    ("act_on_feeds", {"action": "remove", "select": MINE_ONLY}),
    ("declare", {"remove": {"queues": ["reports"], "schedules": ["nightly"]}}),
    ("remove_token", {"name": "ci"}),
)


@dataclass(frozen=True, slots=True)
class Example:
    """A verb with arguments that it carries out."""

    verb: Verb
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.verb.name} {dict(self.arguments)}"

    @property
    def path(self) -> str:
        """The address below the prefix."""
        path = self.verb.path
        for name in self.verb.in_path:
            path = path.replace(f"{{{name}}}", quote(str(self.arguments[name]), safe=""))
        return path

    @property
    def others(self) -> dict[str, Any]:
        """The arguments that do not stand in the address."""
        return {name: value for name, value in self.arguments.items() if name not in self.verb.in_path}

    @property
    def asked(self) -> dict[str, Any]:
        """How a client of HTTP sends it."""
        return {"json": self.others} if self.verb.changes else {"params": query_of(self.others)}

    @property
    def is_of_tenant(self) -> bool:
        """Whether an operator of the tenant may do it."""
        jobs = self.verb.name == "declare" and "feeds" not in self.arguments
        return not (self.verb.of_fleet or jobs)


EXAMPLES: Final = tuple(Example(load()[name], arguments) for name, arguments in ARGUMENTS)
CHANGES: Final = tuple(example for example in EXAMPLES if example.verb.changes)
