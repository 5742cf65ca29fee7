"""A running feed tells once of what is hardly meant: a header with other names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedq.worker.runner import Interrupt
from tests.live.test_runner import Bench
from tests.unit.data_path import DataPath, until


async def noticed(connector: str, source: dict[str, Any], *, landed: int) -> list[Mapping[str, str]]:
    """What the reports of a feed say until so many of its records have landed."""
    reports: list[Mapping[str, str]] = []
    with DataPath() as path:
        bench = Bench(path, source, connector=connector)
        bench.start()
        await until(lambda: len(path.tables.rows.get("acme/orders", [])) >= landed, f"{landed} landed")

        def is_told() -> bool:
            reports.extend(filter(None, [bench.runner.progress.report().noticed]))
            return bool(reports)

        await until(is_told, "it is told")
        bench.runner.interrupt(Interrupt.STOP)
        await bench.end()
        reports.extend(filter(None, [bench.runner.progress.report().noticed]))
    return reports


async def test_a_header_with_other_names_is_told_once_it_can_be_told_from_records(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("nr,cost\n1,2.5\n2,3.5\nnr,cost\n")
    csv = {"fields": ["id", "price"], "header": True}
    source = {"path": str(path), "start": "beginning", "format": "csv", "csv": csv}
    (told,) = await noticed("file", source, landed=4)
    assert told.keys() == {"header"}
    assert told["header"].startswith("the first line, nr, cost, lands as a record")
