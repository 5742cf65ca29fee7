"""Who is logged in to Flower has the role in the API that the setting gives."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from feedq.core.roles import AccessRole, Caller
from feedq.errors import InvalidInput
from feedq.settings import Settings
from feedq.web.mounted_api import caller_of, declared_in

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
    assert declared_in(typed) == {"name": "acme/orders", "connector": "tcp"}
    for wrong, why in (("feeds: [", "line 2: "), (typed + "  - name: b\n", "one feed"), ("", "one feed")):
        with pytest.raises(InvalidInput, match=why):
            declared_in(wrong)
