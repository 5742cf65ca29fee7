"""deploy/kubernetes against the schemas of Kubernetes' API. `tests/repository` compares its figures with feedq."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from tests import platforms, promql
from tests.repository.test_deploy_files import known

VERSION = "1.34"
OTHERS = {"ScaledObject", "ServiceMonitor"}
"""Kinds of KEDA and of the Prometheus operator, whose schemas are not Kubernetes' own."""


def named(manifest: dict[str, Any]) -> str:
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


@pytest.mark.parametrize("manifest", [m for m in platforms.manifests() if m["kind"] not in OTHERS], ids=named)
def test_kubernetes_would_take_a_manifest(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_selectors_find_the_pods_that_they_are_for() -> None:
    every = platforms.manifests()
    pods = {m["metadata"]["name"]: m["spec"]["template"] for m in every if m["kind"] == "Deployment"}
    labels = {name: pod["metadata"]["labels"] for name, pod in pods.items()}

    def selected(selector: dict[str, str]) -> set[str]:
        return {name for name, have in labels.items() if selector.items() <= have.items()}

    for manifest in every:
        name, spec = manifest["metadata"]["name"], manifest["spec"]
        if manifest["kind"] in ("Deployment", "PodDisruptionBudget"):
            assert selected(spec["selector"]["matchLabels"]) == {name}
        if manifest["kind"] == "Service" and name != "feedq-metrics":
            assert selected(spec["selector"]) == {name}
    services = {m["metadata"]["name"]: m for m in every if m["kind"] == "Service"}
    (monitor,) = [m for m in every if m["kind"] == "ServiceMonitor"]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    found = {n for n, s in services.items() if wanted.items() <= s["metadata"].get("labels", {}).items()}
    assert found == {"feedq-metrics"}
    assert selected(services["feedq-metrics"]["spec"]["selector"]) == set(labels)
    with_port = {
        name
        for name, pod in pods.items()
        for port in pod["spec"]["containers"][0]["ports"]
        if port["name"] == "metrics"
    }
    assert with_port == {"feedq-worker", "feedq-jobs", "feedq-beat"}


def test_the_autoscaler_asks_for_metrics_that_exist() -> None:
    (scaled,) = [m for m in platforms.manifests() if m["kind"] == "ScaledObject"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == "feedq-worker"
    (trigger,) = scaled["spec"]["triggers"]
    asked = {series.name for series in promql.series_in(trigger["metadata"]["query"])}
    assert len(asked) == 3
    assert asked <= known()
    spare = 1 - float(trigger["metadata"]["threshold"])
    assert spare >= 1 / scaled["spec"]["minReplicaCount"], (
        "the loss of a worker leaves a feed without a place"
    )
