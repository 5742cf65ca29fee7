"""Settings: bad values are named by their variable, and no password is ever shown."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from feedq.core.permission import Permissions, parse_networks
from feedq.errors import InvalidInput
from feedq.settings import Settings, settings
from tests.simulation.durations import at_largest, at_lowest, durations

SECRET = "hunter2"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """Read the settings from these variables and no others."""
    for name in list(os.environ):
        if name.startswith("FEEDQ_"):
            monkeypatch.delenv(name)

    def read_from(**variables: str) -> Settings:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        settings.cache_clear()
        try:
            return settings()
        finally:
            settings.cache_clear()

    return read_from


Read = Callable[..., Settings]


def test_the_defaults_are_valid_and_three_heartbeats_are_a_ttl(read: Read) -> None:
    defaults = read()
    assert defaults.ttl_s == 3 * defaults.heartbeat_s
    assert defaults.sink_names == ("default",)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FEEDQ_HEARTBEAT_S", "nan"),
        ("FEEDQ_TTL_S", "86401"),
        ("FEEDQ_TTL_S", "0.4"),
        ("FEEDQ_VISIBILITY_TIMEOUT_S", "31536001"),
        ("FEEDQ_METRICS_PORT", "65536"),
        ("FEEDQ_ENVIRONMENT", "x" * 65),
        ("FEEDQ_WORKER_LABELS", "region=eu"),
        ("FEEDQ_TENANT_LIMITS", '{"acme": 5000}'),
        ("FEEDQ_TENANT_LIMITS", '{"acme": {"rows_per_s": -1}}'),
        ("FEEDQ_TENANT_LIMITS", '{"acme": {"rows_per_minute": 60}}'),
    ],
)
def test_a_bad_value_is_refused_and_its_variable_named(read: Read, variable: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=variable):
        read(**{variable: value})


def test_a_heartbeat_that_leaves_no_room_for_a_late_one_is_refused(read: Read) -> None:
    with pytest.raises(InvalidInput, match=r"FEEDQ_HEARTBEAT_S \(10\).* FEEDQ_TTL_S \(6\)"):
        read(FEEDQ_HEARTBEAT_S="10")
    assert read(FEEDQ_HEARTBEAT_S="10", FEEDQ_TTL_S="20").heartbeat_s == 10


@pytest.mark.parametrize("made", [at_lowest, at_largest])
@pytest.mark.parametrize("name", sorted(durations() - {"host_connects_per_s"}))
def test_durations_accept_their_ends(read: Read, made: Callable[[str], Settings], name: str) -> None:
    wanted = made(name)
    variables = {f"FEEDQ_{field.upper()}": f"{getattr(wanted, field)!r}" for field in durations_set(wanted)}
    assert getattr(read(**variables), name) == getattr(wanted, name)


def durations_set(wanted: Settings) -> set[str]:
    return (durations() & wanted.model_fields_set) - {"host_connects_per_s"}


# -- sinks -------------------------------------------------------------------------------------------


def test_sinks_are_named_in_any_case_and_the_default_is_the_control_database(read: Read) -> None:
    read_back = read(FEEDQ_DATABASE_URL="postgresql://c/db", FEEDQ_SINKS__Lake="postgresql://l/db")
    assert read_back.sink_names == ("default", "lake")
    assert read_back.sink_url("LAKE") == read_back.sink_url("lake") == "postgresql://l/db"
    assert read_back.sink_url("default") == "postgresql://c/db"


def test_an_unknown_sink_is_refused_with_the_variable_to_set(read: Read) -> None:
    with pytest.raises(InvalidInput, match=r"FEEDQ_SINKS__LAKE.*known sinks: default"):
        read().sink_url("lake")


def test_the_keys_of_a_mapping_are_json_or_have_a_variable_each(read: Read) -> None:
    read_back = read(
        FEEDQ_TENANT_CAPS='{"acme": 20, "globex": 5}',
        FEEDQ_TENANT_CAPS__ACME="30",
        FEEDQ_CATALOGS__crm__KIND="http",
        FEEDQ_CATALOGS__CRM__DEFAULTS='{"connector": "tcp"}',
        FEEDQ_ROLE_PASSWORDS__WORKER="123456",
    )
    assert read_back.tenant_caps == {"acme": 30, "globex": 5}
    assert read_back.catalogs == {"crm": {"kind": "http", "defaults": {"connector": "tcp"}}}
    assert read_back.role_passwords["worker"].get_secret_value() == "123456"


def test_a_key_below_what_is_no_mapping_is_refused(read: Read) -> None:
    with pytest.raises(InvalidInput, match=r"FEEDQ_SINKS__LAKE: .* FEEDQ_SINKS__LAKE__URL") as refusal:
        read(FEEDQ_SINKS__LAKE="postgresql://me:hunter2@h/db", FEEDQ_SINKS__LAKE__URL=URL)
    assert SECRET not in str(refusal.value)


# -- what feeds may reach ----------------------------------------------------------------------------


def test_feeds_are_kept_from_metadata_only_and_from_every_program_unless_told_otherwise(read: Read) -> None:
    permissions = read().permissions
    assert permissions == Permissions()
    assert permissions.refusal("169.254.169.254") is not None
    assert permissions.refusal("10.0.0.1") is None
    assert permissions.programs == ()


def test_networks_and_programs_are_lists_with_commas(read: Read) -> None:
    permissions = read(
        FEEDQ_EGRESS_DENY="10.0.0.0/8, 127.0.0.0/8 ,::1,",
        FEEDQ_EGRESS_ALLOW="10.1.2.3",
        FEEDQ_EXEC_ALLOW="/usr/bin/rtl_433, /opt/acme/read meters",
    ).permissions
    assert permissions == Permissions(
        deny=parse_networks(["10.0.0.0/8", "127.0.0.0/8", "::1"]),
        allow=parse_networks(["10.1.2.3"]),
        programs=("/usr/bin/rtl_433", "/opt/acme/read meters"),
    )
    assert permissions.refusal("10.1.2.3") is None
    assert permissions.refusal("10.1.2.4") is not None


def test_secrets_are_allowed_by_tenant(read: Read) -> None:
    allowed = read(FEEDQ_SECRETS_ALLOW='{"acme*": ["env:ACME_*"], "*": []}').permissions
    assert allowed.allows_secret("env:ACME_TOKEN", tenant="acme-eu")
    assert not allowed.allows_secret("env:ACME_TOKEN", tenant="other")
    assert not read(FEEDQ_SECRETS_ALLOW="{}").permissions.allows_secret("env:A", tenant="acme")


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("FEEDQ_EGRESS_DENY", "10.0.0.0/8,example.com", "'example.com' is not a network"),
        ("FEEDQ_EGRESS_DENY", "10.0.0.1/8", "'10.0.0.1/8' is not a network .* bits set beyond its prefix"),
        ("FEEDQ_EGRESS_ALLOW", "fe80::1%eth0", "'fe80::1%eth0' is not a network"),
        ("FEEDQ_EXEC_ALLOW", "/bin/true,rtl_433", "'rtl_433' is not an absolute path"),
        ("FEEDQ_SECRETS_ALLOW", '{"acme": ["ACME_TOKEN"]}', "'ACME_TOKEN' must be env:NAME"),
        ("FEEDQ_SECRETS_ALLOW", '{"*-eu": ["env:A"]}', "'.-eu': . is allowed only at the end"),
        ("FEEDQ_SECRETS_ALLOW", "acme", "must be JSON"),
    ],
)
def test_what_is_no_network_no_path_and_no_secret_is_named(
    read: Read, variable: str, value: str, named: str
) -> None:
    with pytest.raises(InvalidInput, match=f"{variable}.*{named}"):
        read(**{variable: value})


# -- secrets -----------------------------------------------------------------------------------------

URL = f"postgresql://user:{SECRET}@host/db"


def test_no_password_is_in_what_settings_print(read: Read) -> None:
    read_back = read(FEEDQ_DATABASE_URL=URL, FEEDQ_BROKER_URL=URL, FEEDQ_SINKS__LAKE=URL)
    for shown in (repr(read_back), str(read_back), str(read_back.model_dump()), read_back.model_dump_json()):
        assert SECRET not in shown
    assert read_back.sink_url("lake") == URL, "the driver gets it"


@pytest.mark.parametrize(
    "variables",
    [
        {"FEEDQ_SINKS": URL},
        {"FEEDQ_SINKS": f'{{"lake": ["{URL}"]}}'},
        {"FEEDQ_SINKS__LAKE__URL": URL},
        {"FEEDQ_WORKER_LABELS": URL},
        {"FEEDQ_LOG_LEVEL": URL},
        {"FEEDQ_DATABASE_URL": URL, "FEEDQ_TTL_S": "x"},
    ],
    ids=lambda v: ",".join(v),
)
def test_no_password_is_in_what_a_refusal_says(read: Read, variables: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read(**variables)
    assert SECRET not in str(refusal.value)
    assert refusal.value.__suppress_context__, "or the traceback would show the cause, which quotes it"


@pytest.mark.parametrize("variable", ["FEEDQ_DATABASE_URL", "FEEDQ_BROKER_URL", "FEEDQ_SINKS__LAKE"])
@pytest.mark.parametrize(
    "url",
    [
        "me:hunter2@host/lake",
        "postgresql:me:hunter2@host/lake",
        "postgresql://me:hunter2 and more@host/lake",
        "postgresql://me:hunter2\n@host/lake",
        "hunter2",
    ],
)
def test_a_url_whose_password_could_not_be_masked_is_refused_and_not_shown(
    read: Read, variable: str, url: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read(**{variable: url})
    assert str(refusal.value).startswith(variable.partition("__")[0])
    assert "hunter2" not in str(refusal.value)
    if variable.startswith("FEEDQ_SINKS"):
        assert "'lake'" in str(refusal.value)
