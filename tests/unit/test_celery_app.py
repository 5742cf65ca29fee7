"""What of the command line reaches the app's configuration."""

from __future__ import annotations

import pytest

from feedq.celery import STREAM_POOL, asks_for_prefork, make_app
from feedq.settings import Settings

WORKER = ["celery", "-A", "feedq", "worker"]


@pytest.mark.parametrize(
    "options",
    [["-P", "prefork"], ["-Pprefork"], ["--pool", "prefork", "-c", "4"], ["-c", "4", "--pool=prefork"]],
)
def test_prefork_is_had_by_naming_it(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert asks_for_prefork([*WORKER, *options])
    monkeypatch.setattr("sys.argv", [*WORKER, *options])
    assert make_app(Settings()).conf.worker_pool == "prefork"


@pytest.mark.parametrize(
    "options", [[], ["-P", "threads"], ["-n", "prefork"], ["-c", "4", "-P"], ["prefork"]]
)
def test_anything_else_leaves_the_stream_pool(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [*WORKER, *options])
    assert make_app(Settings()).conf.worker_pool == STREAM_POOL
