"""The verb that `CONTRIBUTING.md` shows works as it is written there, on every face."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from feedq.api.endpoint import Endpoint
from feedq.api.openapi import openapi
from feedq.core.roles import AccessRole, Caller
from feedq.verbs.registry import OF, PREFIX, VERBS
from feedq.web import buttons
from tests.api_client import ApiClient
from tests.asking import events_of
from tests.cluster import ROOT
from tests.contract.api_stage import settings_of
from tests.contract.harness import Harness
from tests.contract.shell import opened_shell

VERB, BUTTON = re.findall(r"^```python\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S)
IMPORTS = """
from __future__ import annotations
from dataclasses import dataclass
from feedq.core.roles import AccessRole
from feedq.telemetry.event_names import EventKind
from feedq.verbs.registry import At, NameArgument, Text, verb
from feedq.web.buttons import Ask, Field
"""
FEED = "acme/orders"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The code of the page as a module."""
    module = ModuleType("example_of_a_verb")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(IMPORTS + VERB, vars(module))
    yield module
    del VERBS["note_feed"], OF[module.note_feed]


def test_command_address_role_audit_and_button_follow_from_the_function(
    example: ModuleType, harness: Harness, broker_url: str, tmp_path: Path
) -> None:
    harness.feed(FEED, tenant="acme")
    endpoint = Endpoint.of(harness.store, settings_of(harness.url, harness.url, tmp_path))
    address = "/feeds/acme%2Forders/notes"

    with opened_shell(harness.url, broker_url) as shell:
        done = shell.json("do", "note_feed", f"name={FEED}", "text=by hand", "--reason", "meter replaced")
        assert done == {"name": FEED, "text": "by hand", "dry_run": False}
        assert "no feed named" in shell.run("do", "note_feed", "name=nobody", "text=x").stderr
        assert "text: must not be" not in shell.ok(
            "do", "note_feed", f"name={FEED}", "text=x", "dry_run=true"
        )

    operation = openapi()["paths"][f"{PREFIX}/feeds/{{name}}/notes"]["post"]
    assert operation["summary"] == "Write a note into the history of a feed."
    for role, tenant, status in (
        (AccessRole.OPERATOR, None, 200),
        (AccessRole.OPERATOR, "acme", 200),
        (AccessRole.OPERATOR, "beta", 403),
        (AccessRole.VIEWER, None, 403),
    ):
        token = harness.store.tokens.add(f"{role}-{tenant}", role, tenant=tenant, lasts_s=600)
        with ApiClient(endpoint, token=token) as client:
            answer = client.ask("POST", address, json={"text": f"{role} of {tenant}"})
        assert answer.status_code == status, answer.text

    button = eval(BUTTON, vars(example))
    at = replace(endpoint.at, caller=Caller("ada", AccessRole.OPERATOR))
    dialog = buttons.sent(at, button, f"name={FEED}", {"text": "pressed"})
    assert (dialog.done, dialog.problem) == ("Note: done", None)

    told: list[Any] = [e.detail for e in events_of(harness.store, FEED) if "note" in e.detail]
    assert [one["note"] for one in told][::-1] == [
        "by hand",
        "operator of None",
        "operator of acme",
        "pressed",
    ]
    assert told[-1]["by"]["why"] == "meter replaced"
    assert told[-2]["by"]["who"] == "token operator-None"
