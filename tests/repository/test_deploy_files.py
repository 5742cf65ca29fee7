"""Procfile, Dockerfile, docker-compose.yml, Makefile and constraints.txt agree with the package."""

from __future__ import annotations

import re
import shlex
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from celery.bin.celery import celery as celery_command
from click import Command, Context, Group
from flower.options import options as flower_options

from feedq.cli import main as feedq_command
from feedq.control.store.grants import Role
from feedq.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("release", "worker", "jobs", "beat", "api", "flower")
PROCFILE = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines())
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def normalised(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def requirements() -> list[str]:
    project = PYPROJECT["project"]
    listed = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = [re.match(r"[\w.-]+", line) for line in listed]
    return sorted({normalised(m.group()) for m in names if m} - {"feedq"})


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {normalised(name): version for name, version in (line.split("==") for line in lines)}


def check(command: list[str]) -> None:
    """Fails unless ``command`` names commands and options that exist."""
    program, *arguments = command
    if program == "celery":
        assert arguments[:2] == ["-A", "feedq"]
        found: Command = celery_command
        arguments = arguments[2:]
    else:
        assert program == "feedq"
        found = feedq_command
    while isinstance(found, Group) and arguments and not arguments[0].startswith("-"):
        name = arguments.pop(0)
        inner = found.get_command(Context(found), name)
        assert inner is not None, f"{program}: no command {name!r}"
        found = inner
    known = {o for p in found.params for o in p.opts}
    if found.name == "flower":
        # Flower takes its own options in tornado's way: importing it declares them.
        known |= {f"--{name}" for name in flower_options}
    for argument in arguments:
        assert not argument.startswith("-") or argument.split("=")[0] in known, f"{command}: {argument}"


@pytest.mark.parametrize("process", sorted(PROCFILE))
def test_the_procfile_runs_commands_that_exist(process: str) -> None:
    check(shlex.split(PROCFILE[process]))


@pytest.mark.parametrize("service", [*OURS, "roles", "cli"])
def test_compose_runs_commands_that_exist(service: str) -> None:
    check(SERVICES[service]["command"])


@pytest.mark.parametrize("service", [*OURS, "roles", "cli"])
def test_compose_sets_variables_that_exist(service: str) -> None:
    known = {f"FEEDQ_{name.upper()}" for name in Settings.model_fields}
    named = {name for name in SERVICES[service].get("environment", {}) if name.startswith("FEEDQ_")}
    assert {name.partition("__")[0] for name in named} <= known


def test_compose_gives_each_process_a_role_and_lets_the_superuser_make_them_only() -> None:
    roles = {
        name: re.match(r"postgresql://(\w+):", service["environment"]["FEEDQ_DATABASE_URL"])
        for name, service in SERVICES.items()
        if "FEEDQ_DATABASE_URL" in service.get("environment", {})
    }
    assert {name: found and found[1] for name, found in roles.items()} == {
        "roles": SERVICES["postgres"]["environment"]["POSTGRES_USER"],
        "release": "feedq_migration",
        "worker": "feedq_worker",
        "jobs": "feedq_worker",
        "beat": "feedq_beat",
        "api": "feedq_operator",
        "flower": "feedq_flower",
        "cli": "feedq_operator",
    }
    made = SERVICES["roles"]["environment"]
    given = {name.rpartition("__")[2].lower() for name in made if name.startswith("FEEDQ_ROLE_PASSWORDS__")}
    assert given == {*map(str, Role), "sink_default"} - {Role.READER}
    with_sink = {n for n, s in SERVICES.items() if "FEEDQ_SINKS__DEFAULT" in s.get("environment", {})}
    assert with_sink == {"worker", "jobs", "api", "cli"}
    # What they log in with is what they were given.
    for name, service in SERVICES.items():
        url = service.get("environment", {}).get("FEEDQ_DATABASE_URL", "")
        role = url.partition("feedq_")[2].partition(":")[0]
        if role:
            assert made[f"FEEDQ_ROLE_PASSWORDS__{role.upper()}"] in url, name


def test_the_page_says_which_passwords_compose_takes() -> None:
    taken = set(re.findall(r"\$\{(\w+)_PASSWORD:\?", (ROOT / "docker-compose.yml").read_text()))
    said = re.search(
        r"^for name in ([A-Z_ ]+); do$", (ROOT / "docs/howto/deploy.md").read_text(), re.MULTILINE
    )
    assert said is not None
    assert set(said[1].split()) == taken


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_compose_publishes_on_the_loopback_address_only(service: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[service].get("ports", []))


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_compose_takes_every_password_from_the_environment(service: str) -> None:
    values = {k: str(v) for k, v in SERVICES[service].get("environment", {}).items()}
    secret = {k: v for k, v in values.items() if "PASSWORD" in k or "AUTH" in k or "URL" in k}
    assert all(re.search(r"\$\{\w+:\?", value) for value in secret.values())


def test_compose_migrates_before_anything_else_starts() -> None:
    assert SERVICES["release"]["depends_on"]["roles"]["condition"] == "service_completed_successfully"
    for service in ("worker", "jobs", "beat", "api", "flower"):
        assert SERVICES[service]["depends_on"]["release"]["condition"] == "service_completed_successfully"


def test_the_image_copies_files_that_are_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert copied
    assert set(copied) <= allowed
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.parametrize("package", requirements())
def test_every_dependency_is_pinned_by_the_constraints(package: str) -> None:
    assert package in pins()


GRACE = re.compile(
    r"terminationGracePeriodSeconds`?:? (?:to )?(\d+)|stopTimeout` of the container to (\d+)|TimeoutStopSec=(\d+)"
    r"|stop_grace_period: (\d+)s   # its feeds"
)


def test_a_worker_is_given_the_same_time_to_stop_on_every_platform() -> None:
    pages = {path: path.read_text() for path in [*ROOT.glob("docs/**/*.md"), ROOT / "docker-compose.yml"]}
    said = {
        (path.name, int(next(filter(None, found.groups()))))
        for path, text in pages.items()
        for found in GRACE.finditer(text)
    }
    assert {name for name, _ in said} == {"autoscale.md", "deploy.md", "docker-compose.yml"}
    (grace_s,) = {seconds for _, seconds in said}
    assert grace_s >= Settings.model_fields["job_drain_s"].default + 10, "a job, and its last words"
