"""Requests that the API carries out: one for each change of its OpenAPI document.

They name what a test has to put into its store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

PREFIX = "/api/v1"
MINE = "acme/a"
PAUSED = "acme/paused"
"""A feed, and a schedule of that name."""
KEYED, FILLING = "acme/keyed", "acme/filling"
"""Feeds that there can be a backfill of, and is one."""
FEED = {"connector": "tcp", "source": {"url": "tcp://127.0.0.1:1"}, "sink": {"table": "t"}}
BODIES: dict[str, Any] = {
    "put_feed": FEED | {"tenant": "acme"},
    "patch_feed": {"weight": 2},
    "act_on_feeds": {"verb": "restart", "selection": {"tenant": "acme", "match": MINE}, "count": 1},
    "declare_feeds": {"feeds": [FEED | {"name": MINE, "tenant": "acme", "weight": 3}]},
    "move_feed": {"worker": "w@host"},
    "set_cursor": {"cursor": 17},
    "rewind_cursor": {"records": 1},
    "begin_backfill": {"from": 1, "to": 5},
    "replay_dead_letters": {"ids": [1]},
    "drop_dead_letters": {"all": True},
    "put_schedule": {"task": "a.b", "every": "1h"},
    "patch_schedule": {"priority": 5},
    "backfill_schedule": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:03:00Z"},
    "put_queue": {"concurrency": 2},
    "add_token": {"name": "another", "role": "viewer"},
}
"""What is right, where little that is made up is; by operation."""
NAMES = {
    "feeds": MINE,
    "workers": "w@host",
    "schedules": "nightly",
    "runs": "1",
    "queues": "reports",
    "tokens": "ci",
    "catalogs": "crm",
}
"""What is changed, by the first part of the address."""
OTHERS = {
    "resume_feed": PAUSED,
    "resume_schedule": PAUSED,
    "uncordon_worker": "cordoned@host",
    "begin_backfill": KEYED,
    "cancel_backfill": FILLING,
}
"""Operations that would change nothing of those."""


@dataclass(frozen=True, slots=True)
class Example:
    """A request that changes something; ``path`` is behind the prefix."""

    operation: str
    method: str
    path: str
    needs_body: bool

    @property
    def body(self) -> Any:
        return BODIES.get(self.operation)

    @property
    def kind(self) -> str:
        """The first part of the address."""
        return self.path.split("/")[1]


def examples_of(document: Mapping[str, Any]) -> Iterator[Example]:
    """One for each operation of an OpenAPI document that changes something."""
    for path, operations in document["paths"].items():
        for method in operations.keys() - {"get", "parameters"}:
            found = operations[method]
            operation = found["operationId"]
            kind = path.removeprefix(PREFIX).split("/")[1]
            name = quote(OTHERS.get(operation, NAMES.get(kind, "")), safe="")
            address = path.removeprefix(PREFIX).replace("{name}", name).replace("{run_id}", name)
            yield Example(
                operation, method.upper(), address, found.get("requestBody", {}).get("required", False)
            )
