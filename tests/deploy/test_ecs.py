"""deploy/ecs: its template as CloudFormation would judge it, and rollouts on moto's CloudFormation and ECS.

What moto knows nothing of is left to cfn-lint: `UNKNOWN_TO_MOTO`.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import hcl2
import pytest
from moto import mock_aws
from moto.ecs.models import Container
from moto.moto_api import state_manager

from tests import platforms
from tests.platforms import DEPLOY, TEMPLATE

TEMPLATE_BYTES_MAX = 51_200
"""A larger one has to be in a bucket first."""
UNKNOWN_TO_MOTO = {
    "AWS::Logs::MetricFilter",
    "AWS::ApplicationAutoScaling::ScalableTarget",
    "AWS::ApplicationAutoScaling::ScalingPolicy",
}
pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse:UserWarning")


@pytest.fixture(scope="module")
def rollout() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rollout", DEPLOY / "ecs" / "rollout.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Aws:
    """An account with a network, a database's and a broker's security group, a certificate and a secret."""

    def __init__(self, rollout: ModuleType, directory: Path) -> None:
        self._rollout = rollout
        self._parameters = directory / "parameters.json"
        self.ec2, self.ecs = boto3.client("ec2"), boto3.client("ecs")
        vpc = self.ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
        subnets = ",".join(s["SubnetId"] for s in self.ec2.describe_subnets()["Subnets"][:2])
        self.database, self.broker = (
            self.ec2.create_security_group(GroupName=name, Description=name, VpcId=vpc)["GroupId"]
            for name in ("database", "broker")
        )
        self.parameters = {
            "VpcId": vpc,
            "SubnetIds": subnets,
            "LoadBalancerSubnetIds": subnets,
            "Secret": boto3.client("secretsmanager").create_secret(Name="feedq", SecretString="{}")["ARN"],
            "DatabaseSecurityGroup": self.database,
            "BrokerSecurityGroup": self.broker,
            "CertificateArn": boto3.client("acm").request_certificate(DomainName="*.example.com")[
                "CertificateArn"
            ],
            "FlowerHost": "feedq.example.com",
            "ApiHost": "feedq-api.example.com",
        }

    def roll_out(self, monkeypatch: pytest.MonkeyPatch, image: str, *options: str, **parameters: str) -> None:
        self._parameters.write_text(json.dumps(self.parameters | parameters))
        words = ["rollout.py", "--image", image, "--parameters", str(self._parameters), *options]
        monkeypatch.setattr(sys, "argv", words)
        self._rollout.main()

    def stack(self) -> Any:
        (stack,) = boto3.client("cloudformation").describe_stacks(StackName="feedq")["Stacks"]
        return stack

    def output(self, name: str) -> str:
        (value,) = [o["OutputValue"] for o in self.stack()["Outputs"] if o["OutputKey"] == name]
        return str(value)

    def parameter(self, name: str) -> str:
        (value,) = [p["ParameterValue"] for p in self.stack()["Parameters"] if p["ParameterKey"] == name]
        return str(value)

    def resources(self) -> set[str]:
        listed = boto3.client("cloudformation").list_stack_resources(StackName="feedq")
        return {one["LogicalResourceId"] for one in listed["StackResourceSummaries"]}

    def services(self) -> dict[str, Any]:
        self.resources()  # what a condition has come to allow, moto makes when it is listed
        cluster = self.output("Cluster")
        arns = self.ecs.list_services(cluster=cluster)["serviceArns"]
        found = self.ecs.describe_services(cluster=cluster, services=arns)["services"] if arns else ()
        return {service["serviceName"]: service for service in found}

    def ran(self) -> list[str]:
        """The one-off tasks that have run, by name."""
        cluster = self.output("Cluster")
        arns = [
            arn
            for status in ("RUNNING", "STOPPED")
            for arn in self.ecs.list_tasks(cluster=cluster, desiredStatus=status)["taskArns"]
        ]
        tasks = self.ecs.describe_tasks(cluster=cluster, tasks=arns)["tasks"] if arns else ()
        return sorted(task["group"].removeprefix("family:feedq-") for task in tasks)


@pytest.fixture
def aws(rollout: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Aws]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with mock_aws():
        state_manager.set_transition("ecs::task", {"progression": "immediate"})
        yield Aws(rollout, tmp_path)
        state_manager.unset_transition("ecs::task")


def test_cloudformation_would_take_the_template() -> None:
    assert TEMPLATE.stat().st_size <= TEMPLATE_BYTES_MAX
    linted = subprocess.run(
        [Path(sys.executable).with_name("cfn-lint"), TEMPLATE], capture_output=True, text=True, check=False
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_a_first_rollout_migrates_before_there_is_any_service(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Container, "__init__", ended_with(1))
    with pytest.raises(SystemExit, match=r"RolesTask ended with 1 .* no service was changed"):
        aws.roll_out(monkeypatch, "feedq:1", "--with-roles")
    assert aws.services() == {}
    assert (aws.parameter("NextImage"), aws.parameter("Image")) == ("feedq:1", "")
    monkeypatch.setattr(Container, "__init__", ended_with(0))
    aws.roll_out(monkeypatch, "feedq:1", "--with-roles")
    assert set(aws.services()) == {f"feedq-{name}" for name in platforms.SERVICES}
    assert aws.parameter("Image") == "feedq:1"


def test_ecs_gets_the_tasks_that_the_template_says(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    aws.roll_out(monkeypatch, "feedq:1", Imports="acme_jobs")
    assert aws.ran() == ["release"]
    task = aws.ecs.describe_task_definition(taskDefinition="feedq-worker:1")["taskDefinition"]
    (worker,) = task["containerDefinitions"]
    assert worker["image"] == "feedq:1"
    assert worker["command"] == ["celery", "-A", "feedq", "worker", "--concurrency=500"]
    assert {"name": "FEEDQ_IMPORTS", "value": "acme_jobs"} in worker["environment"]
    secret = aws.parameters["Secret"]
    assert {s["name"]: s["valueFrom"] for s in worker["secrets"]} == {
        "FEEDQ_BROKER_URL": f"{secret}:BROKER_URL::",
        "FEEDQ_DATABASE_URL": f"{secret}:WORKER_DATABASE_URL::",
        "FEEDQ_SINKS__DEFAULT": f"{secret}:SINK_URL::",
    }
    for group, port in ((aws.database, 5432), (aws.broker, 6379)):
        (let_in,) = aws.ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]
        assert (let_in["FromPort"], let_in["ToPort"]) == (port, port)
        assert let_in["UserIdGroupPairs"][0]["GroupId"] == aws.output("TaskSecurityGroup")


def test_a_failed_migration_leaves_the_services_as_they_are(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.roll_out(monkeypatch, "feedq:1")
    before = aws.services()
    monkeypatch.setattr(Container, "__init__", ended_with(3))
    with pytest.raises(SystemExit, match="ReleaseTask ended with 3"):
        aws.roll_out(monkeypatch, "feedq:2")
    assert aws.services() == before
    assert (aws.parameter("NextImage"), aws.parameter("Image")) == ("feedq:2", "feedq:1")


def test_going_back_migrates_nothing(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    aws.roll_out(monkeypatch, "feedq:1")
    aws.roll_out(monkeypatch, "feedq:2")
    assert aws.ran() == ["release", "release"]
    aws.roll_out(monkeypatch, "feedq:1", "--services-only")
    assert aws.ran() == ["release", "release"]
    assert (aws.parameter("NextImage"), aws.parameter("Image")) == ("feedq:2", "feedq:1")


def test_a_cluster_that_is_there_is_used(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    aws.ecs.create_cluster(clusterName="ours")
    aws.roll_out(monkeypatch, "feedq:1", ClusterName="ours")
    assert set(aws.services()) == {f"feedq-{name}" for name in platforms.SERVICES}
    assert [arn.rpartition("/")[2] for arn in aws.ecs.list_clusters()["clusterArns"]] == ["ours"]


def test_moto_makes_all_but_what_it_does_not_know(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    aws.roll_out(monkeypatch, "feedq:1")
    resources = platforms.template()["Resources"]
    made = aws.resources()
    assert {r["Type"] for name, r in resources.items() if name not in made} == UNKNOWN_TO_MOTO


def test_terraform_gives_the_template_its_parameters() -> None:
    with (DEPLOY / "ecs" / "terraform" / "main.tf").open() as file:
        read = hcl2.load(file)
    text = json.dumps(read["resource"])
    parameters = platforms.template()["Parameters"]
    needed = {name for name, about in parameters.items() if "Default" not in about} | {"Image"}
    assert {name for name in parameters if f"{name} = " in text or f'"{name}"' in text} == needed


def ended_with(status: int) -> Any:
    """Containers whose process has ended with this status."""
    made = ORIGINAL

    def init(self: Container, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        self.exitCode = status

    return init


ORIGINAL = Container.__init__
