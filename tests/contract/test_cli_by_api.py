"""Commands answer the same from the database and from an API that they are told to ask."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import Result
from pydantic import SecretStr

from feedq.api.endpoint import Endpoint
from feedq.core.model import Identity, StartCursor, TargetState
from feedq.core.roles import AccessRole
from feedq.core.schedule.spec import Queue
from feedq.core.tap import TapPart, TappedRecord
from feedq.settings import Settings
from feedq.sinks.base import CheckpointChange
from feedq.verbs import cursors
from tests.api_client import ServedApi
from tests.contract.jobs_harness import JobsHarness
from tests.contract.shell import Shell, opened_shell
from tests.schedules import Keys

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
NO_SINK = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
"""Takes away what was landed in the control database, which is the sink as well."""
CHANGING = ("now", "heartbeat_age_s", "because", "pass_age_s", "oldest_due_s", "overdue_s")
"""What is another from moment to moment."""
AGE = re.compile(r"-?\b\d[\d.]*\s?(ms|[smhd])\b( ago)?|\b\d\d:\d\d:\d\d\b")
"""A time of day, and how long ago something was: the second command asks later, on a busy machine by a minute."""


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

    def both(self, *arguments: str, given: str = "") -> Result:
        """What both answer, which must be the same."""
        here, there = (s.run(*arguments, given=given) for s in (self.at_database, self.at_server))
        but = ("at",) if arguments[0] == "top" else ()
        assert plain(there.stdout, *but) == plain(here.stdout, *but), there.output
        assert (there.exit_code, there.stderr) == (here.exit_code, here.stderr)
        return there


def plain(text: str, *but: str) -> Any:
    """A document without what changes; else the words of each line, because an age that has grown widens
    its column."""
    try:
        return without(json.loads(text), CHANGING + but)
    except ValueError:
        return [AGE.sub("just now", line).split() for line in text.splitlines()]


def without(value: Any, keys: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [without(one, keys) for one in value]
    if isinstance(value, dict):
        return {key: without(one, keys) for key, one in value.items() if key not in keys}
    return AGE.sub("just now", value) if isinstance(value, str) else value


@pytest.fixture
def sides(control_database_url: str, broker_url: str) -> Iterator[Sides]:
    harness = JobsHarness(control_database_url)
    harness.execute(NO_SINK)
    for number, tenant in enumerate(("acme", "acme", "beta")):
        labels = {"region": "eu" if number else "us"}
        expect = {"max_silence": 60.0} if number == 1 else {}
        harness.feed(f"{tenant}/{number}", tenant=tenant, labels=labels, weight=number + 1, expect=expect)
    harness.run(harness.store.feeds.get("acme/1"), harness.worker("w@host", region="eu"))
    harness.store.feeds.set_target("beta/2", TargetState.PAUSED)
    urls: dict[str, Any] = {"database_url": SecretStr(harness.url), "broker_url": SecretStr(broker_url)}
    endpoint = Endpoint.of(harness.store, Settings(**urls))
    _land(harness, endpoint)
    _schedule(harness)
    # Long ago, so that it is no more overdue for the second command than for the first.
    harness.execute("UPDATE feedq.fleet SET pass_at = clock_timestamp() - interval '1 h'")
    with ServedApi(endpoint) as served, opened_shell(harness.url, broker_url) as shell:
        yield Sides(shell, harness, served.url)
    harness.execute(NO_SINK)
    harness.close()


def _land(harness: JobsHarness, endpoint: Endpoint) -> None:
    """A cursor that was changed once, the checkpoint of a namesake, and refused records."""
    feed = harness.store.feeds.get("acme/0")
    with endpoint.at.open_sink("default") as sink:
        sink.change_checkpoint(
            CheckpointChange(feed.id, feed.name, feed.identity, lambda own: StartCursor(5))
        )
        cursors.changed(harness.store, sink, feed, cursors.CursorVerb.SET, lambda _: 9)
        for number in (101, 102):
            stranger = Identity(uuid4(), uuid4())
            sink.change_checkpoint(CheckpointChange(number, feed.name, stranger, lambda own: StartCursor(3)))
    harness.execute(
        "CREATE TABLE orders (feed text, epoch bigint, received_at timestamptz, payload jsonb); "
        "INSERT INTO feedq_dead_letter (environment, feed_id, feed, epoch, record, error) "
        f"SELECT 'default', {feed.id}, 'acme/0', 1, convert_to(to_json(i)::text, 'UTF8'), 'too late' "
        "FROM generate_series(1, 4) i"
    )


def _schedule(harness: JobsHarness) -> None:
    harness.queues.set(Queue(name="reports", concurrency=2))
    timing: Keys = {"cron": ("30 2 * * *",), "zone": "Europe/Berlin", "exclude": ("2026-12-25",)}
    harness.schedule("acme/nightly", **timing)
    harness.schedule("acme/poll", every=3600.0)
    harness.schedules.pause("acme/poll", reason="not now")
    harness.schedules.trigger("acme/nightly", key="once")


READING = """
feed list
feed list -o wide --tenant acme
feed list --match acme/* --sort bytes --limit 1 -o name
feed show acme/1
feed show nobody
events --feed acme/1 --kind feed_added --since 1h --json --limit 1
export beta/2 acme/nightly --json
export --with-cursors
feed cursor show acme/0
feed cursor rewind acme/0 --records 1 --dry-run
feed dead-letters list acme/0 --limit 2 --json
feed dead-letters list acme/0 99
worker list --json
worker show w --json
schedule show acme/nightly
schedule runs acme/nightly --state waiting --json
schedule next acme/nightly --count 3 --from 2026-12-23 --json
schedule list --queues
status
status --problems
connectors tcp --json
schema
top --count 1
""".strip().split("\n")


def test_what_is_shown_is_the_same(sides: Sides) -> None:
    for line in READING:
        assert sides.both(*line.split()).output, line


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
        for line in ("--limit 1 --json", "--limit 1"):
            sides.both("feed", "tap", "acme/1", *line.split())
        assert "no feed named" in sides.both("feed", "tap", "nobody").stderr
        sides.at_server.environment["FEEDQ_TOKEN"] = sides.token("operator", "beta")
        assert "does not belong to that tenant" in sides.at_server.run("feed", "tap", "acme/1").stderr
        sides.at_server.environment["FEEDQ_TOKEN"] = sides.token("viewer")
        assert "needs the role operator" in sides.at_server.run("feed", "tap", "acme/1").stderr
    finally:
        over.set()
        thread.join()
    assert sides.harness.execute("SELECT id FROM feedq.tap") == []


MANIFEST = """
feeds:
  - {name: acme/0, tenant: acme, connector: tcp, source: {url: "tcp://127.0.0.1:1"}, sink: {table: t}}
  - {name: acme/8, tenant: acme, connector: tcp, source: {url: "tcp://127.0.0.1:1"}, sink: {table: t}}
schedules: [{name: acme/weekly, task: a.b, every: 7d, exclude: [2026-03-20]}]
queues: [{name: mails, rate_per_s: 2}]
"""

REFUSED = [
    "feed pause acme/0 nobody",
    "feed remove acme/0",
    "feed pause --tenant acme",
    "feed set acme/0 source.urll=x",
    "feed edit acme/0",
    "feed move acme/0 --to nobody",
    "feed adopt acme/0 --yes",
    "feed cursor rewind acme/0 --records 1",
    "feed dead-letters replay acme/0",
    "feed dead-letters replay acme/0 99",
    "feed dead-letters drop acme/0 --all",
    "schedule set acme/poll every=never",
    "schedule cancel --run 99",
    "schedule backfill acme/poll --from 2026-01-01 --to 2025-01-01",
    "apply -f - --prune",
]


def test_what_is_refused_is_refused_alike(sides: Sides) -> None:
    for line in REFUSED:
        assert sides.both(*line.split(), given=MANIFEST).exit_code in (1, 2), line


def test_commands_that_take_several_verbs_need_no_database(sides: Sides) -> None:
    applied = sides.at_server.ok("apply", "-f", "-", "--adopt", "--json", given=MANIFEST)
    assert json.loads(applied)["added"] == 3
    assert "ok " in sides.at_server.run("doctor").stdout
    assert "no catalog is set up here" in sides.at_server.run("sync").stderr


def test_a_cursor_goes_and_comes_back_digit_for_digit(sides: Sides) -> None:
    cursor = '{"at":18446744073709551619,"c":1700000000.123456791}'
    for shell in (sides.at_server, sides.at_database):
        shell.ok("feed", "cursor", "set", "acme/0", "--yes", "3")
        shell.ok("feed", "cursor", "set", "acme/0", "--yes", cursor)
        assert sides.harness.execute(
            "SELECT cursor::text FROM feedq_checkpoint WHERE feed = 'acme/0' LIMIT 1"
        )
        for command in (("feed", "cursor", "show", "acme/0", "--json"), ("feed", "show", "acme/0", "--json")):
            assert cursor in compact(sides.both(*command).stdout)


def compact(text: str) -> str:
    return "".join(text.split())


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


WRONG = (
    ("http://127.0.0.1:1", 1, "check that `feedq api` runs there"),
    ("http://feedq.example", 2, "would send the token in clear"),
    ("https://ada:secret@feedq.example", 2, "contains a login"),
    ("feedq.example", 2, "write it as https://HOST:PORT"),
    ("https://feedq.example:port", 2, "--server"),
)


def test_an_address_that_is_wrong_or_of_something_else_is_told(sides: Sides) -> None:
    elsewhere = (f"{sides.url}/elsewhere", 1, "use the release that the server has")
    for server, status, said in (*WRONG, elsewhere):
        done = sides.at_server.run("--server", server, "feed", "list")
        assert (done.exit_code, done.stdout) == (status, ""), server
        assert said in done.stderr
        assert "secret" not in done.stderr


def test_what_no_server_does_is_told_and_never_done_at_a_database_instead(sides: Sides) -> None:
    at_server = f"--server {sides.url}"
    local = ("up", "db upgrade", "lint -f -", "completion bash")
    for line in ("db upgrade --check", *(f"{at_server} {words}" for words in local)):
        done = sides.at_server.run(*line.split())
        assert (done.exit_code, done.stdout) == (2, ""), line
        assert "cannot use an API. " in done.stderr
        assert "Run it without --server and FEEDQ_SERVER" in done.stderr
