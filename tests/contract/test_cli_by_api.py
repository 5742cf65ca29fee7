"""Commands answer the same from the database and from an API that they are told to ask."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from click.testing import Result
from pydantic import SecretStr

from feedq.access import AccessRole
from feedq.api.app import make_app
from feedq.api.backend import ApiBackend
from feedq.embedded.process import free_port
from feedq.model import TargetState
from feedq.settings import Settings
from feedq.store.event_listing import EventFilter
from feedq.tap import TapPart, TappedRecord
from tests.cluster import wait_until
from tests.contract.jobs_harness import JobsHarness
from tests.contract.shell import Shell, opened_shell

pytestmark = pytest.mark.servers

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
CHANGING = ("heartbeat_age_s", "because")
"""What is another from moment to moment."""


class Sides:
    """The command twice: at the database, and at an API over it."""

    def __init__(self, shell: Shell, harness: JobsHarness, url: str) -> None:
        self.harness, self.url = harness, url
        self.at_database = shell
        self.at_server = Shell(NOWHERE, NOWHERE)
        self.at_server.environment |= {"FEEDQ_SERVER": url, "FEEDQ_TOKEN": self.token("operator")}

    def token(self, role: str, tenant: str | None = None) -> str:
        name = f"{role}-{tenant}"
        return self.harness.store.tokens.add(name, AccessRole(role), tenant=tenant, lasts_s=600)

    def both(self, *arguments: str) -> Result:
        """What both answer, which must be the same."""
        here, there = self.at_database.run(*arguments), self.at_server.run(*arguments)
        assert plain(there.stdout) == plain(here.stdout), there.output
        assert (there.exit_code, there.stderr) == (here.exit_code, here.stderr)
        return there


def plain(text: str) -> Any:
    """A document without what changes; else the text."""
    try:
        return without(json.loads(text))
    except ValueError:
        return re.sub(r"[0-9.]+m?s ago", "just now", text)


def without(value: Any) -> Any:
    if isinstance(value, list):
        return [without(one) for one in value]
    if isinstance(value, dict):
        return {key: without(one) for key, one in value.items() if key not in CHANGING}
    return value


@pytest.fixture
def sides(control_database_url: str, broker_url: str) -> Iterator[Sides]:
    harness = JobsHarness(control_database_url)
    for number, tenant in enumerate(("acme", "acme", "beta")):
        labels = {"region": "eu" if number else "us"}
        harness.feed(f"{tenant}/{number}", tenant=tenant, labels=labels, weight=number + 1)
    harness.run(harness.store.feeds.get("acme/1"), harness.worker("w@host", region="eu"))
    harness.store.feeds.set_target("beta/2", TargetState.PAUSED)
    backend = ApiBackend.of(harness.store, Settings(database_url=SecretStr(harness.url)))
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(make_app(backend), port=port, http="h11", lifespan="off", log_config=None)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started, limit_s=20, what="the API listens")
    with opened_shell(harness.url, broker_url) as shell:
        yield Sides(shell, harness, f"http://127.0.0.1:{port}")
    server.should_exit = True
    thread.join(30)
    harness.close()


READING = [
    "feed list",
    "feed list -o json",
    "feed list -o yaml --tenant acme",
    "feed list -o name --label region=eu",
    "feed list -o wide --status paused",
    "feed list --match acme/* --sort bytes --limit 1 -o name",
    "feed list --worker w@host --json",
    "feed list --connector http",
    "feed list --failing",
    "feed show acme/1 --json",
    "feed show acme/1",
    "feed show beta/2",
    "feed show nobody",
    "feed events acme/1",
    "feed events acme/1 --json --limit 1",
    "feed events nobody",
    "feed export",
    "feed export beta/2 --json",
    "feed export --tenant acme",
    "feed dead-letters list --json",
    "worker list --json",
    "worker list --all -o name",
    "worker show w --json",
    "worker show nobody",
    "events --since 1h --json",
    "events --since 1h --limit 2",
    "events --tenant beta --kind feed_paused -o json",
]


def test_a_tap_shows_the_same(sides: Sides) -> None:
    store, over = sides.harness.store, threading.Event()
    view = store.feeds.view("acme/1")
    worker = view.lease.worker_id
    assert worker is not None
    record = TappedRecord("2026-01-01T00:00:00.123456+00:00", '{"a": "\u2028\x85"}', 5_000, True)
    shown = TapPart(view.feed.id, 1, (record,), left_out=3, refused=1)

    def land() -> None:
        while not over.wait(0.1):
            store.taps.put(worker, [shown])

    thread = threading.Thread(target=land)
    thread.start()
    try:
        assert "(cut: 5,000 bytes)" in sides.both("feed", "tap", "acme/1", "--limit", "2").stdout
        for line in ("--limit 1 --json", "--seconds 1 --limit 1"):
            sides.both("feed", "tap", "acme/1", *line.split())
        assert "no feed named" in sides.both("feed", "tap", "nobody").stderr
        sides.at_server.environment["FEEDQ_TOKEN"] = sides.token("operator", "beta")
        assert "is not of that tenant" in sides.at_server.run("feed", "tap", "acme/1").stderr
        sides.at_server.environment["FEEDQ_TOKEN"] = sides.token("viewer")
        assert "needs the role operator" in sides.at_server.run("feed", "tap", "acme/1").stderr
    finally:
        over.set()
        thread.join()
    assert sides.harness.execute("SELECT id FROM feedq.tap") == []


@pytest.mark.parametrize("line", READING)
def test_what_is_shown_is_the_same(sides: Sides, line: str) -> None:
    assert sides.both(*line.split()).output


REFUSED = [
    "feed pause",
    "feed pause nobody",
    "feed pause --tenant nobody",
    "feed pause --tenant acme",
    "feed add acme/1 --connector tcp -o url=tcp://127.0.0.1:1 --sink table=t",
    "feed add acme/9 --connector tcp -o urll=tcp://127.0.0.1:1 --sink table=t",
    "worker drain nobody",
    "feed edit acme/0 --set weight=none",
    "feed edit nobody --set weight=2",
    "feed move acme/0 nobody",
    "feed move acme/1 --yes",
    "feed move --match beta/* --yes",
    "feed list --label wrong",
]


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_is_refused_alike(sides: Sides, line: str) -> None:
    before = sides.harness.execute("SELECT name, generation FROM feedq.feed ORDER BY id")
    assert sides.both(*line.split()).exit_code in (1, 2)
    assert sides.harness.execute("SELECT name, generation FROM feedq.feed ORDER BY id") == before


CHANGES = [
    ("feed pause acme/0", "feed resume acme/0"),
    ("feed pause --tenant acme --yes --json", "feed resume --tenant acme --yes"),
    ("feed restart acme/0 acme/1", None),
    ("feed edit acme/0 --set source.idle_timeout_s=3", "feed edit acme/0 --unset source.idle_timeout_s"),
    (
        "feed edit --of-tenant acme --set weight=7 --yes --json",
        "feed edit --of-tenant acme --set weight=1 --yes",
    ),
    ("feed move acme/0 w", None),
    ("feed move --match acme/0 --to w@host --yes", None),
    ("feed move --match acme/0 --yes --json", None),
    ("worker cordon w", "worker uncordon w"),
    ("worker drain w@host --json", "worker uncordon w"),
    (
        "feed add new/feed --connector tcp -o url=tcp://127.0.0.1:1 --sink table=t",
        "feed remove new/feed --yes",
    ),
]


@pytest.mark.parametrize(("line", "back"), CHANGES)
def test_what_is_changed_is_changed_alike(sides: Sides, line: str, back: str | None) -> None:
    answers, changed = [], []
    for shell in (sides.at_database, sides.at_server):
        answers.append(shell.ok(*line.split()))
        changed.append(
            sides.harness.execute(
                "SELECT name, target_state, tenant, sink, source FROM feedq.feed ORDER BY name"
            )
            + sides.harness.execute("SELECT name, target_state FROM feedq.worker ORDER BY name")
        )
        if back is not None:
            answers.append(shell.ok(*back.split()))
            sides.harness.execute("DELETE FROM feedq.feed WHERE removed_at IS NOT NULL")
    half = len(answers) // 2
    assert answers[:half] == answers[half:]
    assert changed[0] == changed[1]


def test_the_reason_and_who_asked_are_in_history(sides: Sides) -> None:
    sides.at_server.ok("feed", "restart", "acme/0", "--reason", "größer als 5 %")
    (found, *_) = sides.harness.store.history.before(EventFilter())
    assert found.event.detail["by"]["who"] == "token operator-None"
    assert found.event.detail["by"]["why"] == "größer als 5 %"


def test_tokens_are_made_listed_and_ended_by_an_admin(sides: Sides) -> None:
    refused = sides.at_server.run("token", "list")
    assert (refused.exit_code, "needs the role admin" in refused.stderr) == (1, True)
    sides.at_server.environment["FEEDQ_TOKEN"] = sides.token("admin")
    made = sides.at_server.ok("token", "add", "ci", "--role", "viewer", "--for", "1d").strip()
    assert sides.harness.store.tokens.find(made) is not None
    sides.both("token", "list")
    sides.at_server.ok("token", "remove", "ci")
    assert sides.harness.store.tokens.find(made) is None


def test_a_token_of_a_tenant_shows_its_feeds_and_no_others(sides: Sides) -> None:
    sides.at_server.environment["FEEDQ_TOKEN"] = sides.token("operator", "acme")
    assert sides.at_server.ok("feed", "list", "-o", "name").split() == ["acme/0", "acme/1"]
    assert "status" in sides.at_server.ok("feed", "show", "acme/1")
    assert "no feed named" in sides.at_server.run("feed", "show", "beta/2").stderr
    assert sides.at_server.run("feed", "pause", "acme/1", "beta/2").exit_code == 2
    assert sides.harness.store.feeds.get("acme/1").generation == 1


def test_the_token_may_stand_in_a_file(sides: Sides, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(sides.at_server.environment.pop("FEEDQ_TOKEN") + "\n")
    sides.at_server.environment["FEEDQ_TOKEN_FILE"] = str(file)
    assert sides.at_server.run("feed", "list").exit_code == 0
    file.unlink()
    assert "FEEDQ_TOKEN_FILE" in sides.at_server.run("feed", "list").stderr


def test_without_a_token_it_is_said_how_to_give_one(sides: Sides) -> None:
    for token in ("", "feedq_guessed"):
        sides.at_server.environment["FEEDQ_TOKEN"] = token
        done = sides.at_server.run("feed", "list")
        assert (done.exit_code, done.stdout) == (1, "")
        assert "`feedq token add`" in done.stderr
        assert "FEEDQ_TOKEN" in done.stderr


@pytest.mark.parametrize(
    ("server", "status", "said"),
    [
        ("http://127.0.0.1:1", 1, "see that `feedq api` runs there"),
        ("http://feedq.example", 2, "would send the token in clear"),
        ("https://ada:secret@feedq.example", 2, "holds a login"),
        ("feedq.example", 2, "write it as https://HOST:PORT"),
        ("https://feedq.example:port", 2, "--server"),
    ],
)
def test_an_address_that_is_wrong_is_told(sides: Sides, server: str, status: int, said: str) -> None:
    done = sides.at_server.run("--server", server, "feed", "list")
    assert (done.exit_code, done.stdout) == (status, "")
    assert said in done.stderr
    assert "secret" not in done.stderr


def test_what_is_no_api_of_feedq_or_another_release_is_told(sides: Sides) -> None:
    done = sides.at_server.run("--server", f"{sides.url}/elsewhere", "feed", "list")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "use the release of the server" in done.stderr


@pytest.mark.parametrize("line", ["up", "apply -f x.yaml", "db status", "status", "completion bash"])
def test_a_command_that_asks_no_api_says_so(sides: Sides, line: str) -> None:
    done = sides.at_server.run("--server", sides.url, *line.split())
    assert done.exit_code == 2
    assert "leave --server out" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "feed dead-letters list acme/0",
        "feed cursor show acme/0",
        "feed adopt acme/0 --yes",
        "feed export --with-cursors",
        "status",
        "db status",
    ],
)
def test_what_no_server_does_is_refused_and_never_done_at_a_database(sides: Sides, line: str) -> None:
    before = sides.harness.execute("SELECT name, generation FROM feedq.feed ORDER BY id")
    done = sides.at_server.run(*line.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert "is not done by a server" in done.stderr
    assert sides.harness.execute("SELECT name, generation FROM feedq.feed ORDER BY id") == before
