"""What is told of a server that does not let feedq in fits the cause, on real servers and wherever it is told."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg2
import pytest

from feedq.control.store.migrate import require_current
from feedq.errors import SinkUnavailable, Unavailable
from feedq.local.postgres import Postgres
from feedq.local.valkey import Valkey
from feedq.settings import Settings
from feedq.sinks.base import opened_sink
from feedq.verbs.diagnosis.checks import Level
from feedq.verbs.diagnosis.server_checks import check_broker, check_database, check_sinks
from tests.contract.shell import opened_shell

PLAIN = "remedy_plain"
"""A role with the password `PASSWORD` that may connect."""
FULL = "remedy_full"
"""One that may have no session more."""
PASSWORD = "s3cret"
NOBODY, UNENCRYPTED = "remedy_nobody", "remedy_unencrypted"
"""Roles whom the server would trust if there were the one, and if the other came with TLS."""
SHUT = "remedy_shut"
"""A database that only superusers may connect to."""


class StartingPostgres(Postgres):
    """A standby without a primary, which starts for ever."""

    def _prepare(self) -> None:
        super()._prepare()
        (self.cluster / "standby.signal").touch()

    def _answers(self) -> bool:
        try:
            psycopg2.connect(self.url()).close()
        except psycopg2.OperationalError as error:
            return "the database system is" in str(error)
        return False


@pytest.fixture(scope="module")
def starting_url(servers_dir: Path) -> Iterator[str]:
    directory = servers_dir / "starting"
    directory.mkdir(mode=0o711)
    server = StartingPostgres(directory, settings={"fsync": "off", "hot_standby": "off"})
    server.start()
    yield server.url()
    server.stop()


@pytest.fixture(scope="module")
def silent_port() -> Iterator[int]:
    """Where somebody listens who never says anything."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def plain_url(postgres: Postgres) -> Iterator[str]:
    with closing(psycopg2.connect(postgres.url())) as owner, owner.cursor() as cursor:
        owner.autocommit = True
        cursor.execute(f"CREATE ROLE {PLAIN} LOGIN PASSWORD '{PASSWORD}'")
        cursor.execute(f"CREATE ROLE {FULL} LOGIN PASSWORD '{PASSWORD}' CONNECTION LIMIT 0")
        cursor.execute(f"CREATE DATABASE {SHUT}")
        cursor.execute(f"REVOKE CONNECT ON DATABASE {SHUT} FROM PUBLIC")
        rules = postgres.cluster / "pg_hba.conf"
        old = rules.read_text()
        added = f"host all {NOBODY} all trust\nhostnossl all {UNENCRYPTED} all reject\n"
        rules.write_text(added + old)
        cursor.execute("SELECT pg_reload_conf()")
        yield changed(postgres.url(), user=PLAIN, password=PASSWORD)
        rules.write_text(old)
        cursor.execute("SELECT pg_reload_conf()")
        cursor.execute(f"DROP DATABASE {SHUT}")
        cursor.execute(f"DROP ROLE {PLAIN}, {FULL}")


def changed(
    url: str,
    *,
    user: str | None = None,
    password: str | None = None,
    host: str | None = None,
    port: int | None = None,
    path: str | None = None,
    query: str = "",
) -> str:
    """The URL with other parts."""
    old = urlsplit(url)
    name = old.username if user is None else user
    secret = old.password if password is None else password
    login = f"{name}:{secret}" if secret else f"{name}"
    at = f"{login}@{host or old.hostname}:{port or old.port}"
    return urlunsplit(old._replace(netloc=at, path=old.path if path is None else path, query=query))


CLOSED_PORT = 1
NO_HOST = "no.such.host.invalid"
POSTGRESQL: dict[str, tuple[Callable[[str, int], str], str]] = {
    "wrong password": (lambda url, _: changed(url, password="wrong"), "the user name and the password in"),
    "no password": (lambda url, _: changed(url, password=""), "add the password to"),
    "role": (lambda url, _: changed(url, user=NOBODY), f"CREATE ROLE {NOBODY} LOGIN"),
    "database": (lambda url, _: changed(url, path="/nope"), "CREATE DATABASE nope"),
    "right to connect": (lambda url, _: changed(url, path=f"/{SHUT}"), f"GRANT CONNECT ON DATABASE {SHUT}"),
    "host": (lambda url, _: changed(url, host=NO_HOST), "correct the host in"),
    "closed port": (
        lambda url, _: changed(url, port=CLOSED_PORT),
        "start the server, or correct host and port",
    ),
    "time-out": (
        lambda url, silent: changed(url, port=silent),
        "a firewall or a security group drops the packets",
    ),
    "TLS": (lambda url, _: changed(url, query="sslmode=require"), "write sslmode=prefer in"),
    "no TLS": (lambda url, _: changed(url, user=UNENCRYPTED), "write sslmode=require in"),
    "connections": (lambda url, _: changed(url, user=FULL), "raise the server's limit of connections"),
}


@pytest.fixture(params=POSTGRESQL)
def refused(request: pytest.FixtureRequest, plain_url: str, silent_port: int) -> tuple[str, str]:
    """A URL under which PostgreSQL lets nobody in, and what the remedy says."""
    make, remedy = POSTGRESQL[request.param]
    return make(plain_url, silent_port), remedy


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedq.control.store.database.CONNECT_TIMEOUT_S", 2)
    monkeypatch.setattr("feedq.verbs.diagnosis.server_checks.TIMEOUT_S", 1)


def advice_of_database(url: str) -> str:
    (check,) = check_database(url, workers=0)
    assert check.level is Level.FAIL
    return check.advice


def advice_of_broker(url: str) -> str:
    (check,) = check_broker(url)
    assert check.level is Level.FAIL
    return check.advice


def test_remedies_of_a_control_database_fit_the_cause(refused: tuple[str, str]) -> None:
    url, remedy = refused
    advice = advice_of_database(url)
    assert remedy in advice
    with pytest.raises(Unavailable) as waiting:
        require_current(url)  # what a worker that starts asks, and logs
    assert str(waiting.value).endswith(f"; {advice}")
    with opened_shell(url, "redis://127.0.0.1/0") as shell:
        done = shell.run("feed", "list")
    assert advice in done.stderr
    assert PASSWORD not in done.stderr


def test_remedies_of_a_sink_fit_the_cause(refused: tuple[str, str], plain_url: str) -> None:
    url, remedy = refused
    settings = Settings(database_url=plain_url, sinks={"other": url})
    (check,) = (one for one in check_sinks(settings) if one.name == "sink other")
    assert (check.level, remedy in check.advice) == (Level.FAIL, True)
    assert "FEEDQ_DATABASE_URL" not in check.advice
    with (
        pytest.raises(SinkUnavailable, match=re.escape(remedy.removesuffix(" in"))),
        opened_sink(settings, "other", role="test") as sink,
    ):
        sink.dead_letters(limit=1)


def test_a_database_that_starts_is_to_be_waited_for(starting_url: str) -> None:
    assert advice_of_database(starting_url).startswith("wait: the server is starting")


ALIKE = ("wrong password", "no password", "host", "closed port", "time-out")
BROKER = {
    **{cause: POSTGRESQL[cause] for cause in ALIKE},
    "database": (lambda url, _: changed(url, path="/99"), "a smaller database number"),
}


@pytest.mark.parametrize("cause", BROKER)
def test_remedies_of_a_broker_fit_the_cause(valkey: Valkey, silent_port: int, cause: str) -> None:
    make, remedy = BROKER[cause]
    advice = advice_of_broker(make(valkey.url(), silent_port))
    assert remedy in advice
    assert "FEEDQ_BROKER_URL" in advice


def test_another_server_on_the_port_of_a_broker_is_named_as_that(postgres: Postgres) -> None:
    assert "port and scheme in FEEDQ_BROKER_URL" in advice_of_broker(f"redis://127.0.0.1:{postgres.port}/0")
