"""Who is logged in to Flower has the role that the setting gives; and what is typed into a dialog."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from feedq.core.roles import AccessRole, Caller
from feedq.errors import InvalidInput
from feedq.settings import Settings
from feedq.web.buttons import ASKS
from feedq.web.dialogs import declared_in
from feedq.web.guard import caller_of

ROLES = {"ada": "operator", "ben": "operator:acme", "eve@example.com": "admin"}


@pytest.mark.parametrize(
    ("user", "roles", "role", "tenant"),
    [
        ("ada", ROLES, AccessRole.OPERATOR, None),
        ("ben", ROLES, AccessRole.OPERATOR, "acme"),
        ("eve@example.com", ROLES, AccessRole.ADMIN, None),
        ("mallory", ROLES, AccessRole.VIEWER, None),
        ("", ROLES, AccessRole.VIEWER, None),
        ("mallory", ROLES | {"*": "viewer:acme"}, AccessRole.VIEWER, "acme"),
    ],
)
def test_a_user_has_the_role_that_is_said_and_everybody_else_looks(
    user: str, roles: dict[str, str], role: AccessRole, tenant: str | None
) -> None:
    assert caller_of(user, roles) == Caller(f"{user or 'somebody'} in Flower", role, tenant)


def test_a_role_that_there_is_not_is_refused_at_the_start() -> None:
    with pytest.raises(ValidationError, match="'ada': 'root' is no role such as viewer, operator"):
        Settings(flower_roles={"ada": "root"})


def test_what_is_typed_into_a_dialog_is_a_manifest_of_one_feed() -> None:
    typed = "feeds:\n  - name: acme/orders\n    connector: tcp  # as ever\n"
    assert declared_in(typed, "acme/orders") == {"name": "acme/orders", "connector": "tcp"}
    other = typed.replace("orders", "others")
    for wrong, why in (
        *(("feeds: [", "line 2: "), (typed + "  - name: b\n", "one feed"), ("", "one feed")),
        (other, "name: must stay 'acme/orders'"),
    ):
        with pytest.raises(InvalidInput, match=why):
            declared_in(wrong, "acme/orders")


@pytest.mark.parametrize(
    ("kind", "role"),
    [("trigger", AccessRole.OPERATOR), ("cancel-run", AccessRole.OPERATOR), ("pause", AccessRole.VIEWER)],
)
def test_where_nobody_was_given_a_role_whoever_is_logged_in_may_see_to_schedules(
    kind: str, role: AccessRole
) -> None:
    assert caller_of("ada", {}, ASKS[kind].verb.path).role is role
    assert caller_of("ada", {"ben": "operator"}, ASKS[kind].verb.path).role is AccessRole.VIEWER


@pytest.mark.parametrize("kind", ASKS)
def test_what_a_button_asks_for_are_arguments_of_its_verb(kind: str) -> None:
    ask = ASKS[kind]
    named = {*ask.given, *(one.name for one in ask.fields if not one.is_manifest)}
    assert named <= set(ask.verb.arguments.__struct_fields__)
    assert ask.verb.role is AccessRole.OPERATOR
