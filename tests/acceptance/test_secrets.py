"""A secret is planted, every source repeats it in its errors, and then all that feedq shows or keeps is searched.

What a source sends as *data* is the user's own and not looked at: the landing tables and the dead letters.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2
import pytest
import redis
import yaml

from feedq.local.process import free_port
from feedq.local.valkey import Valkey
from tests.cluster import ROOT, Cluster, Place, wait_until
from tests.flower import Flower
from tests.node import Node

pytestmark = pytest.mark.timeout(180)

ENV_SECRET = 'pl4nted"by/env+7f3a'
FILE_SECRET = "pl4nted\\by file%9c1e"
SINK_PASSWORD = "pl4nted-sink-5d20"
FRAGMENTS = ("7f3a", "9c1e", "5d20")
"""The ends of the three: nothing else contains them, however the rest was quoted or cut."""


class Parrot:
    """Accepts whatever comes, and answers with an error that repeats all of it."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.port = 0
        self.nats_port = 0
        """Where it speaks first, as a NATS server does."""
        self.heard: set[str] = set()

    def __enter__(self) -> Parrot:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        nats = await asyncio.start_server(self._greet, "127.0.0.1", 0)
        self.nats_port = nats.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        nats.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version": "2.10.0", "max_payload": 1048576, "auth_required": true}\r\n')
        await self._answer(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                said = await self._listen(reader)
                self._note(said)
                flat = said.replace(b"\r", b" ").replace(b"\n", b" ").replace(b"\0", b" ")
                if said.startswith((b"GET", b"POST")):
                    head = b"HTTP/1.1 500 " + flat + b"\r\nX-Echo: " + flat + b"\r\n"
                    body = b"you said " + said
                    writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                elif said.startswith(b"CONNECT"):
                    writer.write(b"-ERR 'you said " + flat.replace(b"'", b" ") + b"'\r\n")
                elif said.startswith(b"\x10"):
                    writer.write(mqtt_refusal(said.decode(errors="replace").replace("\0", " ")))
                elif said.startswith(b"*"):
                    writer.write(b"-WRONGPASS you said " + flat + b"\r\n")
                else:
                    writer.write(b"x" * 4096 + flat)
                await writer.drain()
        except (TimeoutError, OSError):
            pass
        finally:
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> bytes:
        """What comes at once: a request, a command, or a hello."""
        said = await reader.read(65_536)
        while said.startswith((b"GET", b"POST")) and b"\r\n\r\n" not in said:
            said += await reader.read(65_536)
        return said

    def _note(self, said: bytes) -> None:
        openings = {"http": b"GET", "redis": b"*", "tcp": b"hello", "nats": b"CONNECT", "mqtt": b"\x10"}
        for kind, opening in openings.items():
            told = any(fragment.encode() in said for fragment in FRAGMENTS)
            if said.startswith(opening) and told:
                self.heard.add("websocket" if b"Upgrade" in said else kind)


def mqtt_refusal(said: str) -> bytes:
    """A CONNACK of MQTT 5: not authorised, for the reason that you said …"""
    reason = f"you said {said}".encode()
    properties = b"\x1f" + len(reason).to_bytes(2) + reason
    body = b"\0\x87" + varint(len(properties)) + properties
    return b"\x20" + varint(len(body)) + body


def varint(number: int) -> bytes:
    return bytes([number % 128 | 128]) + varint(number // 128) if number > 127 else bytes([number])


def declarations(parrot: Parrot, program: Path, secret_file: Path) -> list[dict[str, Any]]:
    secrets = {"token": "${env:ACME_TOKEN}", "key": f"${{file:{secret_file}}}"}
    here = f"127.0.0.1:{parrot.port}"
    headers = {"Authorization": "Bearer {token}", "X-Key": "{key}"}
    sources: dict[str, dict[str, Any]] = {
        "tcp": {"url": f"tcp://{here}", "hello": "hello {token} {key}\\n", "max_record_bytes": 100},
        "http": {"url": f"http://{here}/{{token}}?k={{key}}", "headers": headers},
        "sse": {"url": f"http://{here}/{{token}}?k={{key}}", "headers": headers},
        "websocket": {"url": f"ws://{here}/{{token}}?k={{key}}", "headers": headers},
        "redis": {"url": f"redis://{here}", "streams": ["s"], "username": "{key}", "password": "{token}"},
        "nats": {
            "url": f"nats://127.0.0.1:{parrot.nats_port}",
            "stream": "s",
            "username": "{key}",
            "password": "{token}",
        },
        "mqtt": {"url": f"mqtt://{here}", "topics": ["t"], "username": "{key}", "password": "{token}"},
        "exec": {"command": [str(program), "-c", TELLTALE], "env": {"A": "{token}", "B": "{key}"}},
    }
    feeds = [
        {
            "name": f"parrot/{kind}",
            "connector": kind,
            "source": source | {"secrets": secrets, "format": "text"},
            "sink": {"table": "parrot"},
        }
        for kind, source in sources.items()
    ]
    bad_sink = feeds[0] | {"name": "parrot/sink", "sink": {"name": "away", "table": "parrot"}}
    return [*feeds, bad_sink]


TELLTALE = "import os, sys; sys.exit('I was told ' + os.environ['A'] + ' and ' + os.environ['B'])"


@pytest.fixture(scope="module")
def told(place: Place) -> Iterator[tuple[Cluster, list[dict[str, Any]]]]:
    secret_file = place.directory / "key"
    secret_file.write_text(FILE_SECRET + "\n")
    env = {
        "ACME_TOKEN": ENV_SECRET,
        "FEEDQ_SINKS__AWAY": f"postgresql://user:{quote(SINK_PASSWORD)}@127.0.0.1:{free_port()}/nowhere",
        "FEEDQ_EXEC_ALLOW": sys.executable,
        "FEEDQ_LOG_LEVEL": "DEBUG",
        "FEEDQ_BACKOFF_MAX_S": "0.5",
    }
    with (
        Parrot() as parrot,
        place.cluster(env=env) as cluster,
    ):
        cluster.add_beat("b1")
        cluster.add_worker("w1")
        declared = declarations(parrot, Path(sys.executable), secret_file)
        cluster.apply(declared)
        names = {feed["name"] for feed in declared}
        wait_until(
            lambda: all(row.last_error for name, row in cluster.leases().items() if name in names),
            lambda: f"every feed has an error to show: {cluster.leases()}",
        )
        assert parrot.heard >= {"tcp", "http", "websocket", "redis", "nats", "mqtt"}, (
            "the secret never reached the source"
        )
        yield cluster, declared


def assert_clean(where: str, text: str) -> None:
    for fragment in FRAGMENTS:
        at = text.find(fragment)
        assert at < 0, (
            f"{where} holds the secret that ends in {fragment}: …{text[max(0, at - 200) : at + 40]}…"
        )


def test_the_errors_are_told_with_the_secrets_masked(told: tuple[Cluster, Any]) -> None:
    cluster, _ = told
    error = cluster.leases()["parrot/exec"].last_error or ""
    assert "I was told *** and ***" in error
    assert "127.0.0.1" in (cluster.leases()["parrot/http"].last_error or "")


def test_no_log_holds_a_secret(told: tuple[Cluster, Any]) -> None:
    cluster, _ = told
    logs = list(cluster.directory.rglob("*.log"))
    assert len(logs) >= 2
    for log in logs:
        text = log.read_text(errors="replace")
        assert text
        assert_clean(log.name, text)


def test_no_control_table_and_no_message_holds_a_secret(told: tuple[Cluster, Any], valkey: Valkey) -> None:
    cluster, _ = told
    with psycopg2.connect(cluster.database_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'feedq'")
        tables = [name for (name,) in cursor.fetchall()]
        assert {"feed", "lease", "event", "worker"} <= set(tables)
        for table in tables:
            cursor.execute(f"SELECT coalesce(string_agg(t::text, ' '), '') FROM feedq.{table} AS t")
            ((text,),) = cursor.fetchall()
            assert_clean(f"table {table}", text)
    connection.close()
    client: redis.Redis = valkey.client()
    for key in client.scan_iter():
        assert_clean(f"key {key!r}", f"{key!r} {client.dump(key)!r}")
    client.close()


def test_no_command_tells_a_secret(told: tuple[Cluster, Any], tmp_path: Path) -> None:
    cluster, declared = told
    manifest = tmp_path / "feeds.yaml"
    manifest.write_text(yaml.safe_dump({"feeds": declared}))
    commands = [
        ("feed", "list"),
        ("worker", "list"),
        ("status",),
        ("doctor",),
        ("export",),
        ("apply", "-f", str(manifest), "--dry-run"),
        *(("feed", "test", feed["name"], "--timeout", "3") for feed in declared),
        ("events", "--feed", "parrot/exec"),
        ("feed", "list", "--json"),
        *(("feed", "show", name) for name in ("parrot/exec", "parrot/sink")),
        *(("feed", verb, "parrot/exec", "--json") for verb in ("show", "test")),
    ]
    for command in commands:
        ran = cluster.run(*command)
        assert_clean(" ".join(command), ran.stdout + ran.stderr)
        assert ran.stdout


def test_no_page_and_no_answer_of_the_api_holds_a_secret(told: tuple[Cluster, Any], tmp_path: Path) -> None:
    cluster, _ = told
    argv = [sys.executable, "-m", "celery", "-A", "feedq", "flower", "--address=127.0.0.1", "--port=0"]
    node = Node(
        "flower",
        argv,
        env=cluster.env | {"FLOWER_UNAUTHENTICATED_API": "true"},
        cwd=ROOT,
        log=tmp_path / "flower.log",
    )
    try:
        flower = Flower(node)
        for path in ("/feeds", "/fleet", "/feed?name=parrot/exec", "/tasks"):
            answer = flower.get(path)
            assert answer.status == 200, path
            assert_clean(path, answer.text)
        for path in ("feeds", "feeds/parrot%2Fexec", "workers", "status"):
            answer = flower.get(f"/api/v1/{path}")
            assert answer.status == 200, path
            assert_clean(path, answer.text)
    finally:
        node.signal(signal.SIGKILL)
    assert_clean("Flower's log", node.text())
