"""The files for Docker, ECS, Kubernetes, systemd and Procfiles agree with the package, and with each other."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Set
from datetime import UTC, datetime
from itertools import chain
from types import ModuleType
from typing import Any

import pytest
import yaml
from celery.bin.celery import celery as celery_command
from click import Command, Context, Group
from flower.options import options as flower_options

from feedq.celery.fleet_metrics import UNPLACED_REASONS, FleetReading, fleet_families, leading
from feedq.cli import main as feedq_command
from feedq.control.store.fleet_state import FleetState, JobState
from feedq.control.store.grants import Role
from feedq.core.model import Reason, Status
from feedq.settings import Settings
from feedq.telemetry.metrics import REGISTRY
from feedq.verbs.diagnosis.fleet_checks import Overview
from feedq.verbs.fleet import FleetData
from tests import platforms, promql
from tests.platforms import DESCRIBED, PROCFILE, ROOT, Described
from tests.promql import Series

SERVICES: dict[str, dict[str, Any]] = platforms.COMPOSE["services"]
PROCESSES = platforms.described()
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


def of(name: str) -> dict[str, Described]:
    """A process on each platform that has it."""
    return {p.platform: p for p in PROCESSES if p.process == name}


@pytest.mark.parametrize("process", [p for p in PROCESSES if p.command[0] != "sh"], ids=str)
def test_a_platform_runs_commands_that_exist(process: Described) -> None:
    check(process.command)


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_a_platform_sets_variables_that_exist(process: Described) -> None:
    known = {f"FEEDQ_{name.upper()}" for name in Settings.model_fields}
    named = {name for name in [*process.env, *process.secret] if name.startswith("FEEDQ_")}
    assert {name.partition("__")[0] for name in named} <= known


@pytest.mark.parametrize("name", [*platforms.SERVICES, "release"])
def test_every_platform_has_every_process_and_stops_it_alike(name: str) -> None:
    found = of(name)
    assert set(found) == set(DESCRIBED)
    programs = {
        tuple(w for w in p.command if not w.startswith(("--", "-n", "worker", "jobs%")))
        for p in found.values()
    }
    assert len(programs) == 1
    graces = {p.grace_s for p in found.values()}
    assert len(graces) == 1, graces
    if name in ("worker", "jobs"):
        (grace_s,) = graces
        assert grace_s is not None
        assert grace_s >= Settings.model_fields["job_drain_s"].default + 10, "a job, and its last words"
        assert grace_s <= 120, "Fargate's longest"


@pytest.mark.parametrize("process", [p for p in PROCESSES if p.process in platforms.SERVICES], ids=str)
def test_ports_and_health_checks_are_those_of_the_process(process: Described) -> None:
    if process.platform == "systemd":
        return
    ports = {word.partition("=")[2] for word in process.command if word.startswith("--port=")}
    if process.process in ("worker", "jobs", "beat"):
        variable = "FEEDQ_BEAT_METRICS_PORT" if process.process == "beat" else "FEEDQ_METRICS_PORT"
        ports = {process.env[variable]}
        assert process.env["FEEDQ_METRICS_HOST"] == "0.0.0.0"
    (port,) = ports
    assert process.port in (int(port), None)
    paths = {"flower": {"/healthcheck"}, "api": {"/healthz"}}.get(process.process, {"/healthz", "/readyz"})
    assert process.health
    assert process.health <= {f":{port}{path}" for path in paths}


@pytest.mark.parametrize("process", [p for p in PROCESSES if p.process in ("worker", "jobs")], ids=str)
def test_a_worker_may_open_a_file_for_each_feed_and_a_hundred_more(process: Described) -> None:
    # A node of Kubernetes says how many its containers may open: a million, as a rule.
    if process.platform != "kubernetes":
        assert process.files is not None
        assert process.files >= 500 + 100


def secret_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("secret", platforms.DEPLOY / "secret.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_secret_has_what_the_templates_take_and_the_passwords_open_the_urls() -> None:
    maker = secret_maker()
    assert set(maker.ROLES) == {*map(str, Role), "sink_default"} - {Role.READER}
    made = maker.secret(database="db:5432/feedq", admin="postgres:x", broker="redis://b")
    for platform in ("ecs", "kubernetes"):
        taken = {key for p in PROCESSES if p.platform == platform for key in p.secret.values()}
        assert taken == set(made), platform
    for role in map(str, Role):
        if url := made.get(f"{role.upper()}_DATABASE_URL"):
            assert (
                url
                == f"postgresql://feedq_{role}:{made[f'FEEDQ_ROLE_PASSWORDS__{role.upper()}']}@db:5432/feedq"
            )
    assert made["FEEDQ_ROLE_PASSWORDS__SINK_DEFAULT"] in made["SINK_URL"]


@pytest.mark.parametrize("platform", ["ecs", "kubernetes"])
def test_each_process_has_the_role_that_compose_gives_it(platform: str) -> None:
    roles = {
        p.process: p.secret["FEEDQ_DATABASE_URL"].removesuffix("_DATABASE_URL").lower()
        for p in PROCESSES
        if p.platform == platform
    }
    assert roles.pop("status", "beat") == "beat"
    of_compose = {
        p.process: p.secret["FEEDQ_DATABASE_URL"].partition("//")[2].partition(":")[0].removeprefix("feedq_")
        for p in PROCESSES
        if p.platform == "compose" and p.process != "cli"
    }
    assert roles == of_compose | {"roles": "admin"}
    sinks = {p.process for p in PROCESSES if p.platform == platform and "FEEDQ_SINKS__DEFAULT" in p.secret}
    assert sinks == {"worker", "jobs", "api"}


def test_the_fleet_is_scaled_on_numbers_that_feedq_status_prints() -> None:
    resources = platforms.template()["Resources"].values()
    filters = [r["Properties"] for r in resources if r["Type"] == "AWS::Logs::MetricFilter"]
    read = {one["MetricTransformations"][0]["MetricValue"]: one["FilterPattern"] for one in filters}
    assert read == {value: f"{{ {value} = * }}" for value in read}
    assert set(read) == {"$.numbers.held", "$.numbers.capacity", f"$.numbers.waiting.{Reason.NO_CAPACITY}"}
    assert "numbers" in {f.name for f in dataclasses.fields(FleetData)}
    assert {"held", "capacity", "waiting"} <= {f.name for f in dataclasses.fields(Overview)}


def test_kustomize_finds_every_file() -> None:
    for file in platforms.MANIFESTS.glob("**/kustomization.yaml"):
        said = yaml.safe_load(file.read_text())
        assert set(said["resources"]) == {f.name for f in file.parent.glob("*.yaml")} - {file.name}
        assert all((file.parent / place / file.name).exists() for place in said.get("components", ()))


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
    secret.pop("HEALTH_URL", None)
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


GRACE = re.compile(r"terminationGracePeriodSeconds`?:? (?:to )?(\d+)|stopTimeout` of the container to (\d+)")


def test_pages_say_the_time_that_a_worker_is_given_to_stop() -> None:
    said = {
        (path.name, int(found[1] or found[2]))
        for path in ROOT.glob("docs/**/*.md")
        for found in GRACE.finditer(path.read_text())
    }
    assert {seconds for _, seconds in said} == {of("worker")["compose"].grace_s}


# -- metrics -----------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EMPTY = FleetReading(FleetState(NOW, NOW, 0.0, None), JobState(0, 0, (), None, 0, 0, 0, None, 0, 0), [], [])
VALUES: dict[tuple[str, str], Set[str]] = {
    ("feedq_feeds", "status"): set(Status),
    ("feedq_feeds_unplaced", "reason"): set(UNPLACED_REASONS),
    ("feedq_workers", "state"): {"serving", "cordoned", "drained", "draining"},
    ("feedq_schedules", "state"): {"active", "paused"},
    ("feedq_job_slots", "state"): {"free", "busy", "stuck"},
}
"""The values of each label that an expression asks for."""


def fleet() -> list[str]:
    return sorted(promql.exported([leading(True), *fleet_families(EMPTY)]))


def known() -> set[str]:
    return promql.exported(REGISTRY.collect()) | set(fleet()) | promql.OTHERS


def expressions() -> list[str]:
    return [*(alert.expr for alert in promql.alerts()), *(q.expr for q in promql.questions())]


def asked() -> list[Series]:
    return list(chain.from_iterable(map(promql.series_in, expressions())))


def test_every_metric_that_is_asked_for_exists() -> None:
    assert {series.name for series in asked()} - known() == set()


def test_every_value_of_a_label_that_is_asked_for_exists() -> None:
    wrong = [
        f"{series.name}{{{label}={value}}}"
        for series in asked()
        for label, values in series.labels
        for value in values
        if value not in VALUES[series.name, label]
    ]
    assert wrong == []


def test_no_metric_of_the_fleet_goes_unseen() -> None:
    assert set(fleet()) - {series.name for series in asked()} == set()


def test_alerts_are_named_once_and_say_what_they_mean() -> None:
    rules = [rule for group in promql.rule_groups() for rule in group["rules"]]
    assert [name for name, count in Counter(rule["alert"] for rule in rules).items() if count > 1] == []
    assert {rule["labels"]["severity"] for rule in rules} == {"critical", "warning", "info"}
    assert [rule["alert"] for rule in rules if not rule["annotations"]["summary"]] == []


def test_what_to_do_about_every_alert_is_documented() -> None:
    page = (promql.ROOT / "docs" / "howto" / "monitor.md").read_text()
    assert set(re.findall(r"^\| `(Feedq\w+)` \|", page, re.MULTILINE)) == {a.name for a in promql.alerts()}
