"""The file connector passes the suite that every connector is put through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from feedq.connectors.file import FileConnector
from feedq.testing.connector_conformance import ConnectorConformance, Served


class TestConformance(ConnectorConformance):
    """Against a file that somebody appends to."""

    kind = FileConnector
    dials = False

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
        return {"path": where, "poll_interval_s": 0.01}
