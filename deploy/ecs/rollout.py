"""Rolls an image of feedq out on ECS: the database is migrated first, then the services follow.

::

    python deploy/ecs/rollout.py --stack feedq --image 123.dkr.ecr.eu-west-1.amazonaws.com/feedq:7 \\
        --parameters parameters.json --with-roles

Parameters are those of feedq.yaml, as one JSON object; what is left out keeps the value of the last rollout. To go
back to an image before this one, add ``--services-only``: an older release refuses to migrate a newer database.
Needs boto3, and credentials as boto3 finds them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

TEMPLATE = Path(__file__).with_name("feedq.yaml")


class Stack:
    """The stack of one installation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._cloudformation = boto3.client("cloudformation")

    def described(self) -> dict[str, Any] | None:
        """What CloudFormation says of the stack; None before its first rollout."""
        try:
            (stack,) = self._cloudformation.describe_stacks(StackName=self.name)["Stacks"]
        except ClientError as error:
            if "does not exist" in str(error):
                return None
            raise
        found: dict[str, Any] = stack
        return found

    def outputs(self) -> dict[str, str]:
        stack = self.described()
        assert stack is not None
        return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}

    def deploy(self, given: dict[str, str]) -> None:
        """Create the stack, or update it, with these parameters, and wait until that is done."""
        stack, body = self.described(), TEMPLATE.read_text()
        known = self._cloudformation.get_template_summary(TemplateBody=body)["Parameters"]
        before = {p["ParameterKey"]: p["ParameterValue"] for p in stack["Parameters"]} if stack else {}
        # A parameter that an earlier template had, and this one has not, is left out.
        values = {
            name: before.get(name, about.get("DefaultValue"))
            for about in known
            if (name := about["ParameterKey"]) in before or "DefaultValue" in about
        }
        options = {
            "StackName": self.name,
            "TemplateBody": body,
            "Capabilities": ["CAPABILITY_IAM"],
            "Parameters": [
                {"ParameterKey": name, "ParameterValue": value} for name, value in (values | given).items()
            ],
        }
        if stack is None:
            self._cloudformation.create_stack(**options)
            self._cloudformation.get_waiter("stack_create_complete").wait(StackName=self.name)
            return
        try:
            self._cloudformation.update_stack(**options)
        except ClientError as error:
            if "No updates are to be performed" in str(error):
                return
            raise
        self._cloudformation.get_waiter("stack_update_complete").wait(StackName=self.name)


def run_once(outputs: Mapping[str, str], task: str) -> None:
    """Run one of the stack's one-off tasks and wait for its end; leaves this process unless it ended well."""
    ecs = boto3.client("ecs")
    started = ecs.run_task(
        cluster=outputs["Cluster"],
        taskDefinition=outputs[task],
        launchType="FARGATE",
        networkConfiguration={
            "awsvpcConfiguration": {
                "subnets": outputs["TaskSubnets"].split(","),
                "securityGroups": [outputs["TaskSecurityGroup"]],
                "assignPublicIp": outputs["AssignPublicIp"],
            }
        },
    )
    if started["failures"]:
        sys.exit(f"{task} did not start: {started['failures']}")
    arn = started["tasks"][0]["taskArn"]
    ecs.get_waiter("tasks_stopped").wait(cluster=outputs["Cluster"], tasks=[arn])
    (ended,) = ecs.describe_tasks(cluster=outputs["Cluster"], tasks=[arn])["tasks"]
    status = ended["containers"][0].get("exitCode")
    if status != 0:
        why = ended.get("stoppedReason", "")
        sys.exit(
            f"{task} ended with {status} ({why}); no service was changed. Its log is in {outputs['LogGroup']}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stack", default="feedq", help="name of the stack")
    parser.add_argument("--image", required=True, help="what to roll out")
    parser.add_argument("--parameters", type=Path, help="JSON object of parameters of the template")
    parser.add_argument(
        "--with-roles", action="store_true", help="make the roles in PostgreSQL before migrating"
    )
    parser.add_argument(
        "--services-only", action="store_true", help="do not migrate: the image is an older one"
    )
    arguments = parser.parse_args()
    given = json.loads(arguments.parameters.read_text()) if arguments.parameters else {}
    stack = Stack(arguments.stack)
    if not arguments.services_only:
        stack.deploy(given | {"NextImage": arguments.image})
        for task in ("RolesTask", "ReleaseTask") if arguments.with_roles else ("ReleaseTask",):
            run_once(stack.outputs(), task)
    stack.deploy(given | {"Image": arguments.image})


if __name__ == "__main__":
    main()
