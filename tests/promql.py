"""What the rules and dashboards of ``deploy/`` ask Prometheus, and what feedq exports: read alike by all tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import Metric

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
OTHERS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
"""Metrics that prometheus_client itself exports."""

_SELECTED = re.compile(r"\b((?:feedq|process)_[a-z0-9_]+)(\{[^}]*\})?")
_MATCHER = re.compile(r'([a-z_]+)(=~|=)"([^"]*)"')
_COMPARED = re.compile(r"^(.*) [<>] [\d.]+$")


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule that alerts."""

    name: str
    expr: str

    @property
    def measured(self) -> str:
        """The expression without its bound: it has data whether or not the alert fires."""
        compared = _COMPARED.match(self.expr)
        assert compared is not None, f"{self.name} compares with no bound: {self.expr}"
        return compared[1]


@dataclass(frozen=True, slots=True)
class Question:
    """An expression of a panel."""

    where: str
    expr: str


@dataclass(frozen=True, slots=True)
class Series:
    """A metric as an expression names it, with the values that it asks of labels."""

    name: str
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()


def rule_groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    return groups


def alerts() -> list[Alert]:
    return [Alert(rule["alert"], rule["expr"]) for group in rule_groups() for rule in group["rules"]]


def questions() -> list[Question]:
    return [
        Question(f"{file.stem}: {panel['title']}", target["expr"])
        for file in DASHBOARDS
        for panel in json.loads(file.read_text())["panels"]
        for target in panel["targets"]
    ]


def series_in(expr: str) -> Iterator[Series]:
    """The metrics that an expression names. Labels it groups by are left out."""
    for name, braces in _SELECTED.findall(expr):
        yield Series(name, tuple((label, tuple(v.split("|"))) for label, _, v in _MATCHER.findall(braces)))


def exported(families: Iterable[Metric]) -> set[str]:
    """The names under which Prometheus finds these."""
    names = set()
    for family in families:
        match family.type:
            case "counter":
                names.add(f"{family.name}_total")
            case "histogram":
                names |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
            case _:
                names.add(family.name)
    return names
