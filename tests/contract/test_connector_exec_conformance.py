"""The exec connector passes the suite that every connector is put through."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from feedq.connectors.exec import ExecConnector
from feedq.core.permission import DEFAULT, Permissions
from feedq.testing.connector_conformance import ConnectorConformance, Served
from feedq.testing.stage import ConnectorDriver

FOLLOW = """
import sys, time
path, last = sys.argv[1], int(sys.argv[2])
with open(path, "rb") as file:
    while True:
        line = file.readline()
        if not line:
            time.sleep(0.01)
        elif int(line.split(b",")[0].split(b":")[1]) > last:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
"""
"""A program that begins after the cursor that it is given."""


class TestConformance(ConnectorConformance):
    """With a program that follows a file."""

    kind = ExecConnector
    dials = False
    answers = False

    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path) -> None:
        self.path = tmp_path / "feed.jsonl"

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Served]:
        self.path.write_bytes(b"")

        async def send(records: Sequence[bytes]) -> None:
            with self.path.open("ab", buffering=0) as file:
                file.write(b"".join(record + b"\n" for record in records))

        yield Served(str(self.path), send)

    def options(self, where: str) -> dict[str, Any]:
        command = [sys.executable, "-I", "-c", FOLLOW.replace("\\", "\\\\"), where, "{cursor}"]
        return {"command": command, "cursor": "/seq", "first_cursor": "0"}

    def driver(self, where: str, *, permissions: Permissions = DEFAULT, **options: Any) -> ConnectorDriver:
        return super().driver(where, permissions=Permissions(programs=(sys.executable,)), **options)
