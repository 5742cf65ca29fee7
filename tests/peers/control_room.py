"""`ControlRoom`: a small fleet that streams, and a Flower before it with somebody of each role."""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import Any, Self

from tests.cluster import ROOT, Place, feed
from tests.flower import Flower
from tests.invariants import wait_streaming
from tests.node import Node
from tests.source_process import Source

OPERATOR = "ada:of-everything"
VIEWER = "vic:only-looks"
TENANT_OPERATOR = "tom:of-acme"
ROLES = {"ada": "operator", "vic": "viewer", "tom": "operator:acme"}
PREFIX = "q"
"""Below which the pages are."""
STREAMING = ("acme/orders", "acme/payments", "globex/sensors")


class ControlRoom:
    """A context manager. Feeds of two tenants stream, one reaches nobody, one is paused, one has no worker."""

    def __init__(self, place: Place) -> None:
        self.source = Source(rate=20)
        self.cluster = place.cluster()
        self.flower: Flower | None = None

    def __enter__(self) -> Self:
        self.source.__enter__()
        self.cluster.add_beat("beat")
        self.cluster.add_workers(("w1", "w2"))
        self.cluster.apply(self._feeds())
        wait_streaming(self.source, STREAMING)
        self.start_flower()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.flower is not None:
            self.flower.node.end()
        self.cluster.close()
        self.source.__exit__(kind, error, trace)

    @property
    def base(self) -> str:
        assert self.flower is not None
        return f"{self.flower.base}/{PREFIX}"

    def start_flower(self, *options: str) -> None:
        """Start Flower; again at the same place, after it was ended."""
        port = "0" if self.flower is None else self.flower.base.rpartition(":")[2]
        argv = [sys.executable, "-m", "celery", "-A", "feedq", "flower", "--address=127.0.0.1"]
        argv += [f"--port={port}", f"--url-prefix={PREFIX}"]
        env = {
            "FLOWER_BASIC_AUTH": ",".join((OPERATOR, VIEWER, TENANT_OPERATOR)),
            "FEEDQ_FLOWER_ROLES": json.dumps(ROLES),
        }
        log = self.cluster.directory / "flower.log"
        log.unlink(missing_ok=True)
        self.flower = Flower(
            Node("flower", [*argv, *options], env={**self.cluster.env, **env}, cwd=ROOT, log=log)
        )

    def _feeds(self) -> list[dict[str, Any]]:
        url = self.source.url
        feeds = [
            *(feed(name, url) | {"labels": {"team": "till"}} for name in STREAMING),
            feed("acme/unreachable", "tcp://127.0.0.1:1"),
            feed("globex/paused", url) | {"target_state": "paused"},
            feed("globex/unplaced", url) | {"selector": {"required": {"region": "moon"}}},
        ]
        return [one | {"tenant": str(one["name"]).partition("/")[0]} for one in feeds]
