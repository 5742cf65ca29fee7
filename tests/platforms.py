"""What the files for each platform say of feedq's processes, in one form: Compose, ECS, Kubernetes and systemd."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
TEMPLATE = DEPLOY / "ecs" / "feedq.yaml"
MANIFESTS = DEPLOY / "kubernetes"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PROCFILE = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines())
IMAGE_ENV = dict(
    word.split("=", 1)
    for env in re.findall(r"^ENV ((?:.*\\\n)*.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for word in env.replace("\\\n", " ").split()
)
"""The variables that the image sets, its build stage included."""
DESCRIBED = ("compose", "ecs", "kubernetes", "systemd")
SERVICES = ("worker", "jobs", "beat", "api", "flower")
_URL = re.compile(r"http://127\.0\.0\.1(:\d+/\w+)")


class _Tags(yaml.SafeLoader):
    """Reads CloudFormation's short forms: ``!Ref Image`` becomes ``{"Ref": "Image"}``."""


def _tagged(loader: _Tags, tag: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        return {tag: loader.construct_scalar(node)}
    assert isinstance(node, yaml.SequenceNode)
    return {tag: loader.construct_sequence(node, deep=True)}


_Tags.add_multi_constructor("!", _tagged)


def template() -> dict[str, Any]:
    read: dict[str, Any] = yaml.load(TEMPLATE.read_text(), _Tags)
    return read


def manifests() -> list[dict[str, Any]]:
    """The objects that the manifests for Kubernetes declare, without what is kustomize's own."""
    files = [file for file in sorted(MANIFESTS.glob("**/*.yaml")) if file.stem != "kustomization"]
    return list(chain.from_iterable(yaml.safe_load_all(file.read_text()) for file in files))


@dataclass(frozen=True, slots=True)
class Described:
    """One process of one platform."""

    platform: str
    process: str
    command: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    secret: Mapping[str, str] = field(default_factory=dict)
    """By variable, where its value comes from."""
    grace_s: int | None = None
    health: frozenset[str] = frozenset()
    """Where it is asked whether it lives and serves, as ``:port/path``."""
    port: int | None = None
    files: int | None = None
    """How many it may have open."""

    def __str__(self) -> str:
        return f"{self.platform}-{self.process}"


def described() -> list[Described]:
    return [*_compose(), *_ecs(), *_kubernetes(), *_systemd()]


def _compose() -> Iterator[Described]:
    for name, service in COMPOSE["services"].items():
        if not service.get("build"):
            continue
        env = IMAGE_ENV | {k: str(v) for k, v in service.get("environment", {}).items()}
        stop = service.get("stop_grace_period", "").removesuffix("s")
        yield Described(
            "compose",
            name,
            service["command"],
            {k: v for k, v in env.items() if "${" not in v},
            {k: v for k, v in env.items() if "${" in v and ":?" in v},
            int(stop) if stop else None,
            frozenset(_URL.findall(env["HEALTH_URL"])) if name in SERVICES else frozenset(),
            files=service.get("ulimits", {}).get("nofile"),
        )


def _ecs() -> Iterator[Described]:
    for resource in template()["Resources"].values():
        if resource["Type"] != "AWS::ECS::TaskDefinition":
            continue
        for container in resource["Properties"]["ContainerDefinitions"]:
            limits = {limit["Name"]: limit["SoftLimit"] for limit in container.get("Ulimits", ())}
            (port,) = [p["ContainerPort"] for p in container.get("PortMappings", ())] or [None]
            yield Described(
                "ecs",
                container["Name"],
                [w["Sub"] if isinstance(w, dict) else w for w in container["Command"]],
                IMAGE_ENV | {e["Name"]: str(e["Value"]) for e in container["Environment"]},
                {s["Name"]: s["ValueFrom"]["Sub"].split(":")[1] for s in container["Secrets"]},
                container.get("StopTimeout"),
                frozenset(_URL.findall(str(container.get("HealthCheck")))),
                port,
                limits.get("nofile"),
            )


def _kubernetes() -> Iterator[Described]:
    for manifest in manifests():
        if manifest["kind"] not in ("Deployment", "Job"):
            continue
        pod = manifest["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        ports = {p["name"]: p["containerPort"] for p in container.get("ports", ())}
        probes = [container[p]["httpGet"] for p in ("livenessProbe", "readinessProbe") if p in container]
        (port,) = ports.values() or [None]
        yield Described(
            "kubernetes",
            container["name"],
            container["args"],
            IMAGE_ENV | {e["name"]: e["value"] for e in container["env"] if "value" in e},
            {e["name"]: e["valueFrom"]["secretKeyRef"]["key"] for e in container["env"] if "valueFrom" in e},
            pod.get("terminationGracePeriodSeconds"),
            frozenset(f":{ports[probe['port']]}{probe['path']}" for probe in probes),
            port,
        )


def _systemd() -> Iterator[Described]:
    for file in sorted((DEPLOY / "systemd").glob("*.service")):
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[method-assign, assignment] # names of systemd have capitals
        unit.read(file)
        service = unit["Service"]
        program, *words = shlex.split(service["ExecStart"])
        stop, files = service.get("TimeoutStopSec"), service.get("LimitNOFILE")
        yield Described(
            "systemd",
            file.stem.removeprefix("feedq-").removesuffix("@"),
            [Path(program).name, *words],
            grace_s=int(stop) if stop else None,
            files=int(files) if files else None,
        )
