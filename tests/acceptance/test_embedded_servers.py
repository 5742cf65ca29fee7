"""The embedded PostgreSQL and Valkey: closed to strangers and alone on their data."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg2
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from feedq.errors import Conflict, Unavailable
from feedq.local import server
from feedq.local.postgres import Postgres
from feedq.local.process import Account
from feedq.local.server import Server
from feedq.local.valkey import Valkey


@contextmanager
def new_directory() -> Iterator[Path]:
    """One that the servers' account can enter."""
    directory = Path(tempfile.mkdtemp(prefix="feedq-tests-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with new_directory() as directory:
        yield directory


def postgres(data_dir: Path, **settings: str) -> Postgres:
    # What is written is with the kernel all the same; only a power failure would tell.
    return Postgres(data_dir, settings={"fsync": "off", **settings})


@pytest.fixture(params=["postgres", "valkey"], scope="module")
def started(request: pytest.FixtureRequest) -> Iterator[Server]:
    with new_directory() as directory:
        made: Server = postgres(directory) if request.param == "postgres" else Valkey(directory)
        made.start()
        yield made
        made.kill()


def test_a_stranger_is_refused(started: Server) -> None:
    if isinstance(started, Postgres):
        user_only = f"postgresql://feedq@127.0.0.1:{started.port}/feedq"
        with pytest.raises(psycopg2.OperationalError, match="no password supplied"):
            psycopg2.connect(user_only, passfile="/dev/null")
        with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
            psycopg2.connect(user_only.replace("feedq@", "feedq:wrong@"))
    else:
        client = redis.Redis(port=started.port, retry=Retry(NoBackoff(), 0))
        with pytest.raises(redis.AuthenticationError):
            client.ping()


def test_it_listens_on_the_loopback_only(started: Server) -> None:
    sockets = psutil.Process(started.pid).net_connections("all")
    listening = {tuple(c.laddr) for c in sockets if c.status == psutil.CONN_LISTEN}
    assert listening == {("127.0.0.1", started.port)}
    assert not [c for c in sockets if isinstance(c.laddr, str) and c.laddr], "nor on a file of its own"


def test_its_password_is_private_and_not_on_the_command_line(started: Server) -> None:
    password_file = started.home / f"{started.kind}.password"
    password = password_file.read_text()
    assert stat.S_IMODE(password_file.stat().st_mode) == 0o600
    assert len(password) >= 24
    assert not any(password in a for a in psutil.Process(started.pid).cmdline())
    for private in (started.home / "pg18", started.home / "valkey"):
        assert not private.exists() or stat.S_IMODE(private.stat().st_mode) == 0o700


def test_a_second_server_on_the_same_data_is_refused(
    started: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LOCK_TIMEOUT_S", 0.1)
    second = type(started)(started.data_dir)
    with pytest.raises(Conflict, match=f"is in use by process {os.getpid()}"):
        second.start()
    assert started.is_running


def test_a_server_that_cannot_start_says_why(data_dir: Path) -> None:
    made = postgres(data_dir, shared_buffers="nonsense")
    with pytest.raises(Unavailable, match="ended at once") as caught:
        made.start()
    assert 'invalid value for parameter "shared_buffers"' in str(caught.value)
    assert not made.is_running
    good = postgres(data_dir)
    good.start()
    good.stop()


def test_an_initdb_that_was_interrupted_is_done_again(data_dir: Path) -> None:
    half = data_dir / "pg18.new"
    half.mkdir()
    (half / "PG_VERSION").write_text("18\n")
    made = postgres(data_dir)
    made.start()
    made.stop()
    assert not half.exists()


def test_a_private_directory_of_root_gets_a_home_elsewhere_that_goes_with_it(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HOMELESS", data_dir / "homeless")
    private = data_dir / "private"
    private.mkdir(mode=0o700)
    account = Account("stranger", 59_999, 59_999)
    home = server.prepare_home(private / "data", account)
    assert home.parent == data_dir / "homeless"
    assert (private / "data" / "servers").resolve() == home
    assert server.prepare_home(private / "data", account) == home
    shutil.rmtree(private / "data")
    assert server.prepare_home(private / "data", account) != home, "a new directory begins empty"
