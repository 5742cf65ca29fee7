"""The one-off tasks of ECS and Kubernetes on a real server: roles, migration, and the line that scales it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import platforms
from tests.platforms import Described
from tests.repository.test_deploy_files import secret_maker

pytestmark = pytest.mark.timeout(120)

PREFIX = "ecs_"
"""Roles belong to the whole server, and other tests have feedq_…"""


def run(process: Described, secret: dict[str, str], command: list[str]) -> str:
    """The output of a process with the variables that its platform gives it."""
    given = {variable: secret[key] for variable, key in process.secret.items()}
    env = {name: value for name, value in process.env.items() if name.startswith("FEEDQ_")} | given
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        command,
        env={"PATH": path, "FEEDQ_ROLE_PREFIX": PREFIX, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("platform", ["ecs", "kubernetes"])
def test_from_the_secret_to_a_migrated_database(platform: str, database_url: str, broker_url: str) -> None:
    login, _, server = urlsplit(database_url).netloc.rpartition("@")
    database = f"{server}{urlsplit(database_url).path}"
    secret = secret_maker().secret(database=database, admin=login, broker=broker_url, prefix=PREFIX)
    of = {p.process: p for p in platforms.described() if p.platform == platform}
    for name in ("roles", "release"):
        run(of[name], secret, of[name].command)
    if platform == "ecs":
        loop = [word.replace("sleep 60", "true") + " | head -n 1" for word in of["status"].command[2:]]
        (line,) = run(of["status"], secret, ["sh", "-c", *loop]).splitlines()
        numbers = json.loads(line)["numbers"]
        assert (numbers["held"], numbers["capacity"], numbers["waiting"]) == (0, 0, {})
