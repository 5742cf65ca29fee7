"""The `feedq` command on a real PostgreSQL and a real broker, and what `feedq doctor` makes of them."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg2
import pytest
import redis

from feedq.cli import fleet as commands
from feedq.control.store import migrate
from feedq.settings import Settings
from feedq.verbs import fleet
from feedq.verbs.diagnosis.checks import Check, Level, not_checked
from feedq.verbs.diagnosis.server_checks import (
    _notifications,
    _session_locks,
    check_broker,
    check_database,
    check_sinks,
)
from tests.contract.shell import Shell, opened_shell

MANIFEST = """
feeds:
  - name: acme/orders
    connector: tcp
    source: {url: "tcp://127.0.0.1:7001", secrets: {token: "${env:ACME_TOKEN}"}}
    sink: {table: orders, columns: {seq: /seq}, key: [seq]}
    labels: {region: eu}
    selector: {required: {region: eu}, preferred: {disk: ssd}}
    weight: 2
"""


@pytest.fixture
def shell(database_url: str, broker_url: str) -> Iterator[Shell]:
    with opened_shell(database_url, broker_url) as opened:
        yield opened


@pytest.fixture
def migrated_url(database_url: str) -> str:
    migrate.upgrade(database_url)
    return database_url


def connect(url: str) -> Any:
    connection = psycopg2.connect(url)
    connection.autocommit = True
    return connection


def by_name(checks: Iterator[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


# -- the command -------------------------------------------------------------------------------------


def test_a_database_is_migrated_and_feeds_are_declared_shown_and_removed(shell: Shell) -> None:
    assert shell.json("db", "upgrade", "--check", status=1)["pending"] == 1
    behind = shell.run("feed", "list")
    assert (behind.exit_code, behind.stdout) == (1, "")
    assert "feedq db upgrade" in behind.stderr
    assert shell.json("db", "upgrade")["applied"]
    assert shell.json("db", "upgrade", "--check")["pending"] == 0

    assert shell.json("apply", "-f", "-", given=MANIFEST)["added"] == 1
    (row,) = shell.json("feed", "list")
    spec = row["feed"]["spec"]
    assert (spec["name"], row["status"], row["lease"]["epoch"]) == ("acme/orders", "waiting", 0)
    assert spec["weight"] == 2.0
    assert shell.json("feed", "set", "acme/orders", "weight=3")["changed"] == 1
    feed = shell.json("feed", "show", "acme/orders")["view"]["feed"]
    assert (feed["spec"]["weight"], feed["generation"]) == (3.0, 2)
    assert feed["spec"]["selector"] == {"required": {"region": "eu"}, "preferred": {"disk": "ssd"}}
    shell.json("feed", "set", "acme/orders", "selector.required.region=us", "selector.preferred=")
    feed = shell.json("feed", "show", "acme/orders")["view"]["feed"]
    assert feed["spec"]["selector"] == {"required": {"region": "us"}}
    assert feed["generation"] == 3
    kinds = [one["event"]["kind"] for one in shell.json("events", "--feed", "acme/orders")]
    assert kinds == ["feed_added", "feed_edited", "feed_edited"]
    exported = shell.ok("export")
    assert shell.json("apply", "-f", "-", "--prune", given=exported)["changes"] == []
    status = shell.json("status")
    assert (status["numbers"]["feeds"], status["state"]["leader"]) == (1, None)
    problems = shell.json("status", "--problems")
    assert [one["feed"] for one in problems if one["name"] == "waiting"] == ["acme/orders"]
    assert "FAIL: workers: no active worker" in shell.ok("status", "--problems")
    assert shell.json("feed", "remove", "acme/orders", "--yes")["count"] == 1


def test_what_happened_to_everything_is_told_oldest_first(shell: Shell) -> None:
    shell.json("db", "upgrade")
    shell.json("apply", "-f", "-", given=MANIFEST)
    shell.json("feed", "pause", "acme/orders")
    told = shell.json("events", "--since", "1h")
    assert [(one["feed"], one["event"]["kind"]) for one in told] == [
        ("acme/orders", "feed_added"),
        ("acme/orders", "feed_paused"),
    ]
    (paused,) = shell.json("events", "--kind", "feed_paused")
    assert paused["id"] == told[1]["id"]
    assert shell.json("events", "--limit", "1") == [paused]
    for limit, note in (("1", "these are the newest 1; a larger --limit shows more\n"), ("2", "")):
        assert shell.run("events", "--limit", limit).stderr == note, "no list ends unnoticed"
    assert shell.json("events", "--tenant", "nobody") == []
    assert "no feed named" in shell.run("events", "--feed", "nobody").stderr
    assert shell.run("events", "--feed", "acme/orders", "--tenant", "acme").exit_code == 2
    assert "'yesterday' is not a duration" in shell.run("events", "--since", "yesterday").stderr


def test_following_prints_each_event_once_until_ctrl_c(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.json("db", "upgrade")
    shell.json("apply", "-f", "-", given=MANIFEST)
    meanwhile = iter(["pause", "resume"])

    def sleep(_: float) -> None:
        if (action := next(meanwhile, None)) is None:
            raise KeyboardInterrupt
        shell.json("feed", action, "acme/orders")

    monkeypatch.setattr(commands, "time", SimpleNamespace(sleep=sleep))
    lines = shell.ok("events", "--since", "1h", "--follow").splitlines()
    assert [line.split("  ")[1] for line in lines] == ["feed_added", "feed_paused", "feed_resumed"]


# -- doctor ------------------------------------------------------------------------------------------


def test_doctor_finds_servers_well_and_a_fleet_missing(shell: Shell) -> None:
    shell.run("db", "upgrade")
    report = shell.json("doctor", status=1)
    levels = {check["name"]: check["level"] for check in report["checks"]}
    assert not report["healthy"]
    for name in (
        *("database", "migrations", "connections", "notifications", "session locks", "broker"),
        *("messages", "broker eviction", "sink default", "feeds"),
    ):
        assert levels[name] == "ok", name
    assert (levels["workers"], levels["beat"], levels["reconcile"]) == ("FAIL", "warn", "FAIL")
    lines = shell.run("doctor").stdout.splitlines()
    assert lines[0].startswith("ok           database")
    assert any(line.startswith("FAIL         workers") for line in lines)
    assert any(line.strip().startswith("-> start workers") for line in lines)


def test_doctor_notices_that_sessions_are_shared(database_url: str) -> None:
    # What a pooler by transaction does: two clients, one session of the server.
    shared = connect(database_url)
    check = _session_locks(shared, connect(database_url))
    assert check.level is Level.OK
    shared = connect(database_url)
    check = _session_locks(shared, shared)
    assert check.level is Level.WARN
    assert "shared between sessions" in check.detail


def test_doctor_notices_that_notifications_do_not_arrive(database_url: str) -> None:
    with closing(connect(database_url)) as listener, closing(connect(database_url)) as sender:
        assert _notifications(listener, sender).level is Level.OK
        # A transaction that stays open keeps its notification to itself, like a session that was swapped.
        sender.autocommit = False
        assert _notifications(listener, sender).level is Level.WARN


def test_doctor_warns_when_connections_run_short(migrated_url: str) -> None:
    assert by_name(check_database(migrated_url, workers=1))["connections"].level is Level.OK
    assert by_name(check_database(migrated_url, workers=1_000))["connections"].level is Level.WARN


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@host:port/x",
        "sqlite+nothing://me:hunter2@host/x",
        "mongodb://me:hunter2@host/x",
        "mysql+pymysql://me:hunter2@127.0.0.1:1/x",
    ],
)
def test_doctor_says_what_is_wrong_with_the_url_of_a_sink(migrated_url: str, url: str) -> None:
    here = Settings(database_url=migrated_url, sinks={"other": url})
    check = by_name(check_sinks(here))["sink other"]
    assert check.level is Level.FAIL
    assert "hunter2" not in repr(check)


def test_doctor_names_feeds_whose_sink_is_not_set_up(shell: Shell) -> None:
    shell.run("db", "upgrade")
    done = shell.run("apply", "-f", "-", given=MANIFEST.replace("{table:", "{name: far, table:"))
    assert done.exit_code == 0, done.stderr
    (check,) = [c for c in shell.json("doctor", status=1)["checks"] if c["name"] == "sink far"]
    assert check["detail"] == "not set up here, but named by 1 feed: acme/orders"
    assert "FEEDQ_SINKS__FAR" in check["advice"]


def test_doctor_warns_of_a_broker_that_throws_queues_away(broker_url: str, valkey: Any) -> None:
    with closing(valkey.client()) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            check = by_name(check_broker(broker_url))["broker eviction"]
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "0")
    assert (check.level, check.advice) == (Level.WARN, "CONFIG SET maxmemory-policy noeviction")


def test_a_broker_that_forbids_its_settings_is_not_checked_and_not_well(
    shell: Shell, broker_url: str, valkey: Any
) -> None:
    """An access list does it here, as `rename-command CONFIG ""` does elsewhere."""
    parts = urlsplit(broker_url)
    shell.environment["FEEDQ_BROKER_URL"] = urlunsplit(
        parts._replace(netloc=f"shut:s3cret@{parts.hostname}:{parts.port}")
    )
    shell.run("db", "upgrade")
    with closing(valkey.client()) as client:
        client.execute_command("ACL", "SETUSER", "shut", "on", ">s3cret", "~*", "&*", "+@all", "-config")
        try:
            report = shell.json("doctor", status=1)
            lines = shell.run("doctor").stdout.splitlines()
        finally:
            client.execute_command("ACL", "DELUSER", "shut")
    found = {check["name"]: check for check in report["checks"]}
    check = found["broker eviction"]
    assert (check["level"], "'config|get'" in check["detail"]) == ("not checked", True)
    assert check["advice"].startswith("let the user of FEEDQ_BROKER_URL run CONFIG GET")
    assert any(line.startswith("not checked  broker eviction") for line in lines)
    assert ", 1 not checked" in lines[-1]


def test_what_was_not_checked_is_no_failure(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "diagnose", lambda *_, **__: iter([not_checked("alerts", "1 target", "try")]))
    assert shell.json("doctor")["healthy"]


def test_doctor_leaves_the_broker_as_it_was(broker_url: str) -> None:
    assert all(check.level is Level.OK for check in check_broker(broker_url))
    with closing(redis.Redis.from_url(broker_url, socket_timeout=5)) as client:
        assert client.keys("*") == []


def test_history_says_who_asked_from_where_and_why(shell: Shell) -> None:
    shell.run("db", "upgrade")
    shell.ok("apply", "-f", "-", given=MANIFEST)
    shell.ok("feed", "pause", "acme/orders", "--reason", "maintenance of the warehouse")
    added, paused = shell.json("events", "--feed", "acme/orders")
    added, paused = added["event"], paused["event"]
    me = {"who": getpass.getuser(), "from": socket.gethostname()}
    assert (added["detail"]["by"], paused["detail"]["by"]) == (
        me,
        me | {"why": "maintenance of the warehouse"},
    )
    assert f"by {me['who']} from {me['from']}: maintenance of the warehouse" in shell.ok(
        "events", "--feed", "acme/orders"
    )
    assert shell.run("feed", "pause", "acme/orders", "--reason", "a\nb").exit_code == 2


def test_a_token_is_shown_once_listed_and_removed(shell: Shell) -> None:
    shell.run("db", "upgrade")
    made = shell.json("token", "add", "ci", "--role", "operator", "--tenant", "acme", "--for", "1h")["token"]
    (listed,) = shell.json("token", "list")
    assert (listed["name"], listed["role"], listed["tenant"]) == ("ci", "operator", "acme")
    assert made not in shell.ok("token", "list")
    assert shell.run("token", "add", "ci", "--role", "viewer").exit_code == 1
    assert shell.run("token", "add", "x", "--role", "viewer", "--for", "0s").exit_code == 2
    assert shell.json("token", "remove", "ci") == [{"name": "ci"}]
    assert shell.run("token", "remove", "ci").exit_code == 2
