"""The commands of the README, the tutorial and the guides, typed as they stand at one small installation."""

from __future__ import annotations

import asyncio
import glob
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import psycopg2
import pytest
import yaml

from feedq.local.postgres import Postgres
from feedq.local.process import free_port
from tests.acceptance.test_up import START_S, STOP_S, directory, plain_env
from tests.alert_receiver import AlertReceiver
from tests.cluster import wait_until
from tests.contract.http_source import read_request
from tests.contract.websocket_server import accept, frame
from tests.pages import GUIDES, ROOT, TUTORIAL, Block, blocks
from tests.source_process import Source

pytestmark = pytest.mark.timeout(300)

README = ROOT / "README.md"
BLOCK_MAX_S = 90.0
IN_THE_FIRST_TERMINAL = re.compile(r"^(?:\w+=\S+ )*feedq up\b.*$", re.MULTILINE)
DEFAULT_UP = "feedq up --workers 2"

STAGE = {
    "acme/orders": ("declare-feeds.md", "feeds.yaml"),
    "harbour/close-day": ("schedule-jobs.md", "schedules.yaml"),
}
"""What guides speak of, and which one of them declares it: it is there before another is typed."""

ASKED_FOR = {
    "<pid>": """
SELECT worker.pid FROM feedq.worker JOIN feedq.lease ON worker_id = worker.id JOIN feedq.feed ON feed.id = feed_id
WHERE feed.name = 'tutorial/counter'""",
    "<name>": "SELECT name FROM feedq.worker WHERE state = 'active' ORDER BY started_at LIMIT 1",
}
"""What a reader looks up and puts in."""

OWN_TABLE = ("1. Start feedq", "2. Land a file in a table")
"""The sections of the tutorial that lead from an empty directory to an own feed in an own table."""
OWN_TABLE_COMMANDS_MAX = 8
OWN_TABLE_MAX_S = 240.0

# -- programs that are not here ------------------------------------------------------------------------


def has_extras(words: list[str]) -> bool:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return all(extra in extras for word in words for extra in re.findall(r"feedq\[(\w+)\]", word))


def has_services(words: list[str]) -> bool:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    named = [word.partition("=")[0] for word in words if re.fullmatch(r"\w+=\d+", word)]
    if "run" in words:
        named += [word for word in words[words.index("run") + 1 :] if not word.startswith("-")][:1]
    return words[0] == "compose" and set(named) <= services.keys()


def has_units(words: list[str]) -> bool:
    units = [re.sub(r"@\d$", "@", word) for word in words if word.startswith("feedq-")]
    return all((ROOT / "deploy" / "systemd" / f"{unit}.service").exists() for unit in units)


def has_processes(words: list[str]) -> bool:
    processes = re.findall(r"^(\w+):", (ROOT / "Procfile").read_text(), re.MULTILINE)
    return words[0] == "run" or (words[0] == "start" and set(words[1:]) <= set(processes))


def has_jobs(words: list[str]) -> bool:
    manifests = "".join(path.read_text() for path in (ROOT / "deploy" / "kubernetes").rglob("*.yaml"))
    jobs = [word.removeprefix("job/") for word in words if re.search(r"^(job/)?feedq-", word)]
    return all(f"name: {job}\n" in manifests for job in jobs)


def has_options(words: list[str]) -> bool:
    program = (ROOT / "deploy" / "ecs" / "rollout.py").read_text()
    return all(f'"{word}"' in program for word in words if word.startswith("--"))


NOT_HERE: dict[str, tuple[str, Callable[[list[str]], bool]]] = {
    "aws": ("needs AWS", bool),
    "cp": ("writes to /etc", bool),
    "docker": ("needs a Docker engine", has_services),
    "honcho": ("goes on; tests/deploy/test_procfile.py runs it", has_processes),
    "kubectl": ("needs a cluster", has_jobs),
    "pip": ("needs a registry; tests/deploy/test_package.py installs a wheel", has_extras),
    "rabbitmqctl": ("needs RabbitMQ", bool),
    "rollout": ("needs AWS; tests/deploy/test_ecs.py runs it on an emulation", has_options),
    "systemctl": ("needs systemd", has_units),
}
"""Programs that are not run, the reason, and what has to be true of their arguments all the same."""

PRELUDE = """
trap 'echo "@failed $? $BASH_COMMAND"' ERR
# What goes on until it is stopped only reads its options.
celery() { command celery "$@" --help > celery.help; }
feedq() {
  if [ "$1" = api ]; then command feedq "$@" --help > api.help; return; fi
  command feedq "$@" || echo "@failed $? feedq $*"
}
python() {
  if [ "$1" = deploy/ecs/rollout.py ]; then rollout "${@:2}"; else command python "$@"; fi
}
"""

MAY_FAIL = {
    "feedq feed adopt": "there is nothing to adopt",
    "feedq feed edit": "an editor needs a terminal",
    "feedq feed restart --failing": "none fails",
    "feedq feed move": "it may be there already",
    "feedq doctor": "it says what a small installation lacks",
    "feedq feed backfill cancel": "it has ended by then",
}


# -- who types, and where ------------------------------------------------------------------------------


class FirstTerminal:
    """Where ``feedq up`` goes on."""

    def __init__(self, where: Path, env: dict[str, str]) -> None:
        self.where, self._env = where, env
        self._up: subprocess.Popen[bytes] | None = None

    def type(self, command: str) -> None:
        """Start it, or end the one before and start anew."""
        self.close()
        with (self.where / "up.out").open("wb") as log:
            self._up = subprocess.Popen(
                ["bash", "-c", re.sub(r"^((?:\w+=\S+ )*)", r"\1exec ", command)],
                cwd=self.where, env=self._env, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        wait_until(lambda: "everything is up" in self._said(), self._said, limit_s=START_S)

    def _said(self) -> str:
        return (self.where / "up.out").read_text()

    def settings(self) -> dict[str, str]:
        if self._up is None:
            self.type(DEFAULT_UP)
        asked = ["feedq", "env", "--json"]
        done = subprocess.run(
            asked, cwd=self.where, env=self._env, capture_output=True, text=True, check=True
        )
        return dict(json.loads(done.stdout))

    def close(self) -> None:
        if self._up is not None:
            self._up.send_signal(signal.SIGINT)
            self._up.wait(STOP_S)
            self._up = None


class Terminal:
    """A shell in a directory: each block is typed into it, so what one exports the next ones have."""

    def __init__(self, where: Path, env: dict[str, str], stands_in: dict[str, str]) -> None:
        self._stands_in = stands_in
        self._log = where / "typed.out"
        with self._log.open("wb") as log:
            self._shell = subprocess.Popen(
                ["bash"], cwd=where, env=env, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                text=True, start_new_session=True,
            )  # fmt: skip
        self.type(PRELUDE)

    def there(self, text: str) -> str:
        """What a page says, with the hosts and names of this installation."""
        for named, here in self._stands_in.items():
            text = text.replace(named, here)
        return text

    def type(self, text: str) -> str:
        """What it said. Fails with the first command that did."""
        before = len(self._log.read_text())
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{{\n:\n{self.there(text)}\n}} < /dev/null\necho '@done'\n")
        self._shell.stdin.flush()

        def said() -> str:
            return self._log.read_text()[before:]

        wait_until(lambda: said().endswith("@done\n"), said, limit_s=BLOCK_MAX_S)
        failed = re.findall(r"^@failed (\d+) (.*)$", said(), re.MULTILINE)
        assert [one for one in failed if not one[1].startswith(tuple(MAY_FAIL))] == [], said()
        return re.sub(r"^@.*\n", "", said(), flags=re.MULTILINE)

    def close(self) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        assert self._shell.stdin is not None
        self._shell.stdin.close()


class Place:
    """One installation, the sources that its feeds read, and what stands in for what the pages name."""

    def __init__(self, where: Path, *, source: Source, usual: int, alerts: str, superuser: str) -> None:
        stubs = where / "stubs"
        stubs.mkdir()
        self._called = where / "called"
        for name in NOT_HERE:
            (stubs / name).write_text(
                f"#!/bin/sh\nprintf '%s\\037' {name} \"$@\" >> {self._called}\necho >> {self._called}\n"
            )
            (stubs / name).chmod(0o755)
        path = os.pathsep.join([str(stubs), str(Path(sys.executable).parent), os.environ["PATH"]])
        # Other tests have feedq_…, and roles belong to the whole server.
        self._env = {**plain_env(), "PATH": path, "FEEDQ_ROLE_PREFIX": "of_the_pages_"}
        self._where = where
        self.up = FirstTerminal(where, {**self._env, "FEEDQ_IMPORTS": "harbour"})
        host = socket.gethostname().partition(".")[0]
        self.stands_in = {
            "tcp://feeds.acme.example:7001": source.url,
            "127.0.0.1:7001": f"127.0.0.1:{free_port()}",
            '"127.0.0.1", 7001': "",
            """'{"from": {cursor}}""": """'{"feed": {name}, "from": {cursor}}""",
            "wss://stream.example.com/v1": f"ws://127.0.0.1:{usual}/v1",
            "https://api.example.com": f"http://127.0.0.1:{usual}",
            "postgresql://postgres:its-password@db.example.com/feedq": superuser,
            "mailto://user:password@example.com  slack://…": alerts,
            "worker1@host-a": f"worker1@{host}",
            "worker2@host-b": f"worker2@{host}",
            "FEEDQ_IMPORTS=jobs ": "FEEDQ_IMPORTS=jobs,harbour ",
        }
        self.stands_in['"127.0.0.1", 7001'] = self.stands_in["127.0.0.1:7001"].replace(
            "127.0.0.1:", '"127.0.0.1", '
        )

    @contextmanager
    def terminal(self, name: str) -> Iterator[tuple[Path, Terminal]]:
        """A shell in a directory of its own, or in that of ``feedq up``."""
        env, where = self._env, self._where
        if name:
            settings = self.up.settings()
            env, where = env | settings, where / name
            where.mkdir()
            (where / "deploy").symlink_to(ROOT / "deploy")
            (where / ".feedq").symlink_to(self._where / ".feedq")
            readings = where / "readings.csv"
            readings.write_text("sensor,at,celsius\n" + "a,2026-11-20T06:30:00Z,21.5\n" * 5)
            (where / "feeds").mkdir()
            self.stands_in |= {
                "/data/readings.csv": str(readings),
                "/etc/feeds": str(where / "feeds"),
                "postgresql://feedq:its-password@db.example.com/feedq": settings["FEEDQ_DATABASE_URL"],
                "redis://:its-password@valkey.example.com:6379/0": settings["FEEDQ_BROKER_URL"],
                "postgresql://… FEEDQ_BROKER_URL=redis://…": " FEEDQ_BROKER_URL=".join(
                    settings[f"FEEDQ_{one}_URL"] for one in ("DATABASE", "BROKER")
                ),
            }
        terminal = Terminal(where, env, self.stands_in)
        try:
            yield where, terminal
        finally:
            terminal.close()

    def judge_programs(self) -> None:
        """Those that are not here were given what they would take."""
        if self._called.exists():
            for line in self._called.read_text().splitlines():
                name, *words = line.split("\037")[:-1]
                files = [word for word in words if word.startswith("deploy/")]
                assert all(glob.glob(str(ROOT / file)) for file in files), line
                assert NOT_HERE[name][1](words), line
            self._called.unlink()


async def usual_source(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The WebSocket and the HTTP address of three usual sources, at one port."""
    head = await reader.readuntil(b"\r\n\r\n")
    again = asyncio.StreamReader()
    again.feed_data(head)
    try:
        if b"upgrade: websocket" in head.lower():
            await accept(again, writer)
            for seq in range(1, 6):
                record = {"seq": seq, "symbol": "ACME", "price": "12.50", "ts": "2026-11-20T06:30:00Z"}
                writer.write(frame(json.dumps(record).encode()))
            await writer.drain()
            await reader.read()
        else:
            assert (await read_request(again)).target.startswith("/trades")
            item = {"symbol": "ACME", "amount": "2", "time": "2026-11-20T06:30:00Z"}
            body = json.dumps({"items": [{"id": n, **item} for n in range(1, 6)]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
    finally:
        writer.close()


@contextmanager
def usual_sources() -> Iterator[int]:
    """The port of both, served by a thread."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(usual_source, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, name="usual-sources", daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@pytest.fixture(scope="module")
def place(postgres: Postgres) -> Iterator[Place]:
    with ExitStack() as stack:
        where = stack.enter_context(directory())
        source = stack.enter_context(Source())
        usual = stack.enter_context(usual_sources())
        alerts = stack.enter_context(AlertReceiver())
        (jobs,) = [b for b in blocks(ROOT / "docs" / "howto" / "schedule-jobs.md") if b.file == "harbour.py"]
        (where / jobs.file).write_text(jobs.text)
        superuser = postgres.create_database("of_the_pages")
        stack.callback(postgres.drop_database, "of_the_pages")
        made = Place(where, source=source, usual=usual, alerts=alerts.url, superuser=superuser)
        stack.callback(made.up.close)
        yield made


# -- pages ---------------------------------------------------------------------------------------------


def shows(said: str, block: Block) -> None:
    """Each line of the block was said, in this order; ``…`` stands for anything."""
    lines = iter([" ".join(line.split()) for line in said.splitlines()])
    for line in block.text.splitlines():
        words = " ".join(line.split())
        pattern = re.escape(words).replace("…", ".*")
        assert not words or any(re.fullmatch(pattern, one) for one in lines), f"{block}: {line!r} in:\n{said}"


def type_page(page: Path, terminal: Terminal, where: Path, place: Place) -> list[str]:
    """Save its files, type its commands, compare what it shows. Returns what each block said."""
    found = blocks(page)
    for block in found:
        if block.file:
            (where / block.file).write_text(terminal.there(block.text))
    said: list[str] = []
    for block in found:
        if block.language == "text":
            shows(said[-1], block)
        if block.language != "sh":
            continue
        for asked, statement in ASKED_FOR.items():
            if asked in block.text:
                # Nobody holds a feed that is just being moved.
                wait_until(partial(ask, place, statement), asked)
                place.stands_in[asked] = str(ask(place, statement)[0][0])
        first = IN_THE_FIRST_TERMINAL.search(block.text)
        said.append(terminal.type(IN_THE_FIRST_TERMINAL.sub("", block.text)))
        if first and page == TUTORIAL:  # elsewhere it means what is up already
            place.up.type(terminal.there(first[0]))
    return said


def ask(place: Place, statement: str) -> list[tuple[object, ...]]:
    url = place.up.settings()["FEEDQ_DATABASE_URL"]
    with closing(psycopg2.connect(url)) as database, database, database.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_the_way_to_an_own_table_is_short() -> None:
    way = [b.text for b in blocks(TUTORIAL) if b.language == "sh" and b.section in OWN_TABLE]
    typed = re.sub(r"<<END\n.*?^END$", "", "".join(way), flags=re.MULTILINE | re.DOTALL).splitlines()
    commands = [line for line in typed if not line.startswith("pip install ")]
    assert 3 < len(commands) <= OWN_TABLE_COMMANDS_MAX
    assert not re.search(r"psql|SELECT|CREATE|python", "".join(way)), "no SQL, and no code"


def test_the_tutorial(place: Place) -> None:
    began = time.monotonic()
    with place.terminal("") as (where, terminal):
        said = type_page(TUTORIAL, terminal, where, place)
    assert time.monotonic() - began < OWN_TABLE_MAX_S
    assert ask(place, "SELECT id::text, article, price::text FROM shop_orders ORDER BY id") == [
        ("1", "book", "12.50"), ("2", "pen", "1.20"), ("3", "map", "7.00"),
    ]  # fmt: skip
    counted = [one for text in said for one in re.findall(r"^(\d+) (\d+) (\d+)$", text, re.MULTILINE)]
    assert len(counted) == 1
    assert len(set(counted[0])) == 1, "nothing lost, nothing doubled, though its worker was killed"
    assert ask(place, "SELECT count(*) > 0, bool_and(records > 0) FROM counted") == [(True, True)]
    place.judge_programs()


@pytest.mark.parametrize("page", [README, *GUIDES], ids=lambda page: page.stem)
def test_a_page(page: Path, place: Place) -> None:
    with place.terminal(page.stem) as (where, terminal):
        for name, (guide, file) in STAGE.items():
            if any(name in b.text for b in blocks(page) if b.language == "sh"):
                (staged,) = [b for b in blocks(ROOT / "docs" / "howto" / guide) if b.file == file]
                (where / file).write_text(terminal.there(staged.text))
                if page.name != guide:
                    terminal.type(f"feedq apply -f {file}")
        type_page(page, terminal, where, place)
        terminal.type("command feedq feed remove acme/orders --yes --wait > removed 2>&1 || true")
    ask(place, "DROP TABLE IF EXISTS orders")
    for block in blocks(page):
        if block.language == "sql":
            ask(place, block.text)
    place.judge_programs()
