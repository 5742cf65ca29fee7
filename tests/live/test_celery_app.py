"""What of the command line reaches the app's configuration."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from time import monotonic

import pytest
from pydantic import SecretStr

from feedq.celery.application import STREAM_POOL, asks_for_prefork, make_app
from feedq.settings import Settings

LIMIT_S = 15.0
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


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts, as its backlog does, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_nobody_waits_for_a_silent_broker_longer_than_its_time_out(scheme: str, silent: int) -> None:
    app = make_app(Settings(broker_url=SecretStr(f"{scheme}://127.0.0.1:{silent}"), broker_timeout_s=1))
    began = monotonic()
    transport = app.connection_for_write().transport
    with pytest.raises(transport.connection_errors):
        transport.create_channel(transport.establish_connection())
    assert monotonic() - began < LIMIT_S


def test_rabbitmq_has_a_time_out_for_each_direction() -> None:
    app = make_app(Settings(broker_url=SecretStr("amqp://host"), broker_timeout_s=7))
    options = app.connection_for_write().transport_options
    assert (options["read_timeout"], options["write_timeout"]) == (7, 7)


def test_both_clocks_of_celery_are_bounded() -> None:
    app = make_app(Settings())
    for clock in (app.clock, app.control.mailbox.clock):
        assert clock.adjust(2**63 - 1) < 100
