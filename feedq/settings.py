"""Settings: ``FEEDQ_*`` environment variables, read once per process.

The text below each is what `docs/reference/settings.md` says of it; a test keeps the two alike.
URLs may hold passwords, so they are `SecretStr` and show as asterisks wherever they are printed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from feedq.core.backoff import BackoffPolicy
from feedq.core.expectations import Expectations, expected_of, read_expectations
from feedq.core.limits import RateLimits
from feedq.core.permission import Permissions, parse_networks
from feedq.core.placement.base import Rules, Strategy
from feedq.errors import InvalidInput

Seconds = Annotated[float, Field(ge=0, le=86_400)]
CommaSeparated = tuple[str, ...]
PREFIX: Final = "FEEDQ_"
NESTED: Final = "__"
"""Between the name of a setting that is a mapping and a key of it, in `FEEDQ_SINKS__LAKE`."""
DEFAULT_SINK = "default"
HEARTBEAT_MIN_S: Final = 0.05
"""A heartbeat interval of nothing must not become a loop without a pause."""


class Settings(BaseModel):
    """All settings of a feedq process."""

    model_config = ConfigDict(frozen=True, validate_default=True)

    database_url: SecretStr = SecretStr("postgresql://localhost/feedq")
    """Control database (PostgreSQL): feeds, leases, workers, history."""
    database_timeout_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """A session of the control database whose other end is silent for this long is given up, by feedq and by
    the server: a host lost power, or the network drops everything. 0 leaves that to the operating systems,
    which take hours."""
    broker_url: SecretStr = SecretStr("redis://localhost:6379/0")
    """Celery broker: Valkey or Redis (`redis://`), or RabbitMQ (`amqp://`)."""
    sinks: dict[str, SecretStr] = {}
    """Sink databases by name, `FEEDQ_SINKS__<NAME>=<url>`. `default` is the control database unless set."""
    catalogs: Annotated[dict[str, dict[str, Any]], Field(repr=False)] = {}
    """Catalogs that `feedq sync` makes feeds of, by name: `FEEDQ_CATALOGS__<NAME>__KIND` is `directory`,
    `http`, `sql`, `mongodb` or `dynamodb`, and each of its options a variable more, such as
    `FEEDQ_CATALOGS__<NAME>__URL`."""
    sync_database_url: SecretStr = SecretStr("")
    """Control database as a role that may declare feeds, for workers that run schedules which sync catalogs.
    Empty: as `FEEDQ_DATABASE_URL`."""
    environment: Annotated[str, Field(min_length=1, max_length=64)] = "default"
    """Keeps the checkpoints of several feedq installations apart in one sink database."""

    heartbeat_s: Seconds = 2.0
    """Interval of a worker's heartbeat."""
    ttl_s: Annotated[float, Field(ge=0.5, le=86_400)] = 6.0
    """A worker unheard of for this long is gone; three heartbeats."""
    reconcile_interval_s: Seconds = 5.0
    """Tick of `reconcile`; changes wake it at once besides."""
    settle_s: Seconds = 1.5
    """How old a worker must be before running feeds are moved to it; a fleet that starts cold places nothing
    until one worker is."""
    expect: Annotated[dict[str, Any], BeforeValidator(read_expectations)] = {}
    """What is expected of every feed, as JSON: `{"max_silence": "5m", "max_refused": "1%"}`, with the keys of
    `expect` of a feed; it says what it expects otherwise by itself, or its tenant does. Beats judge by it; with
    `max_event_lag` workers need it, too."""
    tenant_expect: dict[str, Annotated[dict[str, Any], BeforeValidator(read_expectations)]] = {}
    """The same for the feeds of a tenant, as JSON: `{"acme": {"max_silence": "30s"}}`."""
    drift_add: bool = False
    """Whether workers add columns for feeds with `drift: add` as soon as a record has a new field; otherwise
    `feedq feed drift` does. The role of the sink must own the table."""
    alert_urls: SecretStr = SecretStr("")
    """Whom the elected beat tells what is not as expected: addresses as apprise reads them, spaces between
    (`mailto://…  slack://…  json://host/path`). Needs the extra `alerts`."""
    tenant_alert_urls: dict[str, SecretStr] = {}
    """The same for the feeds of a tenant alone, as JSON: `{"acme": "mailto://…"}`."""
    alert_interval_s: Seconds = 30.0
    """The shortest time between two messages to one address; what is found meanwhile is told together."""
    placement: Strategy = Strategy.BALANCED
    """Which worker gets a feed: `balanced`, the least utilised; or `rendezvous`, the one that a hash favours,
    unless it is too full."""
    measured_load: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How much of a feed's load is what was measured of it (rows and bytes a second, beside the fleet's mean)
    and not its `weight`: from 0, none, to 1, all."""
    tenant_caps: dict[str, Annotated[int, Field(ge=0)]] = {}
    """Feeds of one tenant that one worker may have, as JSON: `{"acme": 20}`; `*` stands for every other
    tenant."""
    moves_per_pass: Annotated[int, Field(ge=0, le=100_000)] = 100
    """Feeds that may be under way from one worker to another at a time; 0 moves none."""
    handoff_timeout_s: Seconds = 30.0
    """An owner that was asked to let go of a feed and has not done so in this time loses it."""
    restart_hold_s: Seconds = 0.0
    """How long the feeds of a worker that is stopped wait for its successor of the same name. A crash never
    waits."""
    connects_per_s: Annotated[float, Field(ge=0, le=1_000_000)] = 500.0
    """Connections to sources that one worker begins a second; 0 is no limit."""
    host_connects_per_s: dict[str, Annotated[float, Field(ge=0, le=1_000_000)]] = {"*": 200.0}
    """Connections that all workers together begin a second to one remote host, as JSON:
    `{"feeds.example.com": 20}`; `*` stands for every other host, 0 is no limit."""
    event_retention_days: Annotated[int, Field(ge=0, le=3650)] = 14
    """Days of history kept in `feedq.event`."""

    job_slots: Annotated[int, Field(ge=1, le=256)] = 4
    """Runs of schedules that each worker takes at a time, and threads for ordinary tasks beside them. With
    `-Q jobs`, `-c` is the number of runs instead."""
    drain_timeout_s: Seconds = 1.5
    """A stopping worker ends its streams within this, or is cut off."""
    job_drain_s: Seconds = 30.0
    """A stopping worker lets running jobs of schedules end within this; what has not is lost, or run again
    elsewhere, as its semantics say."""
    visibility_timeout_s: Annotated[int, Field(ge=1, le=31_536_000)] = 3600
    """Redis: after how long an unacknowledged ordinary task is run again."""
    broker_timeout_s: Annotated[float, Field(ge=1, le=600)] = 5.0
    """How long connecting to the broker, sending to it and waiting for its answer may take each; then the
    connection is given up."""
    worker_labels: dict[str, str] = {}
    """Labels of this worker, as JSON, for feeds that select by label."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Port of `/metrics`, `/healthz` and `/readyz` of a worker; 0 is off."""
    metrics_host: str = "127.0.0.1"
    """Address that the metrics port of a worker or beat listens on."""
    beat_metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Port of the same paths on a beat, which says there how the whole fleet is; 0 is off."""

    flush_interval_s: Seconds = 0.25
    """Longest wait of a received record for its group commit."""
    stall_s: Annotated[float, Field(ge=0, le=86_400)] = 5.0
    """A worker whose event loop stands still for this long, while it could run, is ended, and its feeds go on
    elsewhere; 0 is never. So is a worker with another thread that has stood still for 4 s, unless this is 0."""
    memory_limit: Annotated[int, Field(ge=0)] = 0
    """Bytes that a worker process may use: before it reaches them, it lets go of the feed that grows. 0 is
    the limit of its container or cgroup, if there is one."""
    state_dir: str = ""
    """Directory in which workers note what they are doing, for whoever has to explain their end. Empty is one
    of this user's in shared memory or among the temporary files."""
    inflight_bytes_total: Annotated[int, Field(ge=1)] = 64 * 2**20
    """Bytes received and not committed at which the whole worker stops reading; one feed stops at a quarter of
    them. A feed that has none of them may still read 8 KiB, and what completes its next record; connectors on
    libraries that read by themselves, one batch."""

    tenant_limits: dict[str, RateLimits] = {}
    """Rates of tenants over all their feeds on all workers, as JSON: `{"acme": {"rows_per_s": 5000,
    "bytes_per_s": 1000000}}`; `*` stands for every other tenant."""

    egress_deny: CommaSeparated = ()
    """Networks (CIDR, comma-separated) that feeds may not connect to, besides link-local and metadata
    addresses."""
    egress_allow: CommaSeparated = ()
    """Networks that feeds may connect to although they are denied."""
    exec_allow: CommaSeparated = ()
    """Absolute paths of the programs that feeds of `connector: exec` may run; none unless named."""
    secrets_allow: dict[str, tuple[str, ...]] | None = None
    """Secrets that feeds may use, by tenant, as JSON: `{"acme": ["env:ACME_*", "file:/run/secrets/acme/*"],
    "*": []}`; `*` at the end stands for any end, of tenants too. Unset, every feed may use every secret that
    a worker can read."""

    role_prefix: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,29}$")] = "feedq_"
    """How the names of the roles begin that `feedq db grants` makes in PostgreSQL."""
    role_passwords: dict[str, SecretStr] = {}
    """Passwords that `feedq db grants --apply` gives to roles, `FEEDQ_ROLE_PASSWORDS__<ROLE>=<password>`;
    nothing else reads them."""

    api_loopback_role: Literal["none", "viewer", "operator", "admin"] = "none"
    """Role over everything of whoever asks the HTTP API from this machine without a token; `none`: nobody is
    answered without one. Not for machines that others use, nor behind a proxy on the same one."""
    flower_roles: dict[str, str] = {}
    """Roles that people logged in to Flower have in the HTTP API there, as JSON: `{"ada": "operator", "ben":
    "operator:acme", "*": "viewer"}`, over everything or over one tenant; `*` stands for everybody else, who are
    viewers unless that is said."""
    flower_hosts: CommaSeparated = ()
    """Host names (comma-separated) by which browsers may reach Flower, besides addresses and `localhost`; `*`
    is any."""

    imports: CommaSeparated = ()
    """Modules with your own tasks (comma-separated), imported by each worker as it starts."""
    run_retention_days: Annotated[int, Field(ge=0, le=3650)] = 30
    """Days of history kept of runs that have ended."""

    backoff_max_s: Seconds = 30.0
    """Longest reconnect delay; the first is a fifth of a second, and each is longer than the one before."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe log event that is written."""
    log_format: Literal["console", "json"] = "console"
    """`json` writes one object a line."""

    @field_validator("database_url", "broker_url")
    @classmethod
    def _check_url(cls, url: SecretStr) -> SecretStr:
        return _readable(url)

    @field_validator("catalogs")
    @classmethod
    def _check_catalogs(cls, catalogs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        # As variables have them, whose names are read without regard to case.
        return {name.lower(): options for name, options in catalogs.items()}

    @field_validator("sinks")
    @classmethod
    def _check_sinks(cls, sinks: dict[str, SecretStr]) -> dict[str, SecretStr]:
        readable: dict[str, SecretStr] = {}
        for name, url in sinks.items():
            try:
                # One that is empty is not set up, as compose files and charts have it.
                readable |= {name: _readable(url)} if url else {}
            except ValueError as error:
                raise ValueError(f"sink {name!r} {error}") from None
        return readable

    @field_validator("egress_deny", "egress_allow", "exec_allow", "flower_hosts", "imports", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value

    @field_validator("egress_deny", "egress_allow")
    @classmethod
    def _check_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        parse_networks(networks)
        return networks

    @field_validator("exec_allow")
    @classmethod
    def _check_programs(cls, programs: tuple[str, ...]) -> tuple[str, ...]:
        for program in programs:
            if not program.startswith("/"):
                raise ValueError(f"{program!r} is no absolute path")
        return programs

    @field_validator("flower_roles")
    @classmethod
    def _check_roles(cls, roles: dict[str, str]) -> dict[str, str]:
        for user, said in roles.items():
            if said.partition(":")[0] not in ("viewer", "operator", "admin"):
                raise ValueError(
                    f"{user!r}: {said!r} is no role such as viewer, operator, admin or operator:TENANT"
                )
        return roles

    @field_validator("secrets_allow")
    @classmethod
    def _check_secrets(cls, allowed: dict[str, tuple[str, ...]] | None) -> dict[str, tuple[str, ...]] | None:
        for tenant, patterns in (allowed or {}).items():
            for pattern in (tenant, *patterns):
                if "*" in pattern[:-1]:
                    raise ValueError(f"{pattern!r}: * may stand at the end only")
            for pattern in patterns:
                if pattern != "*" and not pattern.startswith(("env:", "file:/")):
                    raise ValueError(f"{pattern!r} is none of env:NAME, file:/path and *")
        return allowed

    @model_validator(mode="after")
    def _check_heartbeat(self) -> Settings:
        # Half, because a silence of half a ttl is taken for an outage of the database: see store/workers.py. A
        # heartbeat may then be late by half an interval and more before the trust of its worker ends.
        if self.heartbeat_s > self.ttl_s / 2:
            raise ValueError(
                f"FEEDQ_HEARTBEAT_S ({self.heartbeat_s:g}) must not exceed half of "
                f"FEEDQ_TTL_S ({self.ttl_s:g}): workers would be taken for dead between two heartbeats"
            )
        return self

    @property
    def backoff(self) -> BackoffPolicy:
        return BackoffPolicy(max_s=self.backoff_max_s)

    @property
    def rules(self) -> Rules:
        return Rules(
            strategy=self.placement,
            settle_s=self.settle_s,
            tenant_caps=self.tenant_caps,
            moves=self.moves_per_pass,
        )

    @property
    def permissions(self) -> Permissions:
        return Permissions(
            deny=parse_networks(self.egress_deny),
            allow=parse_networks(self.egress_allow),
            programs=self.exec_allow,
            secrets=None if self.secrets_allow is None else tuple(self.secrets_allow.items()),
        )

    def expected_of(self, tenant: str, own: Expectations) -> Expectations:
        """What is expected of a feed of a tenant that expects ``own`` of itself."""
        return expected_of(tenant, own, everything=self.expect, tenants=self.tenant_expect)

    @property
    def sink_names(self) -> tuple[str, ...]:
        return tuple(sorted({DEFAULT_SINK, *(name.lower() for name in self.sinks)}))

    def sink_url(self, name: str) -> str:
        """The URL of a named sink, with its password; for the driver only, never for a message."""
        named = {key.lower(): url for key, url in self.sinks.items()}
        if name.lower() in named:
            return named[name.lower()].get_secret_value()
        if name.lower() == DEFAULT_SINK:
            return self.database_url.get_secret_value()
        raise InvalidInput(
            f"sink {name!r} is not set up here: set FEEDQ_SINKS__{name.upper()} to its URL "
            f"(known sinks: {', '.join(self.sink_names)})"
        )


def _readable(url: SecretStr) -> SecretStr:
    """Raises `ValueError`, without the text: the password of what cannot be read as a URL could not be masked."""
    text = url.get_secret_value().strip()
    if "://" not in text:
        raise ValueError("is no URL such as postgresql://user@host/database")
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError("holds a space or a control character; percent-encode it, a space as %20")
    return SecretStr(text)


@cache
def settings() -> Settings:
    """The settings of this process. Raises as `read_settings`."""
    return read_settings(os.environ)


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings that these variables say.

    Raises:
        InvalidInput: a variable is out of range; the message names it.
    """
    try:
        return Settings.model_validate(_given(environment))
    except ValidationError as error:
        raise InvalidInput(_explain(error)) from None


def _given(environment: Mapping[str, str]) -> dict[str, Any]:
    """The values by the names of the settings. A mapping is JSON, or has a variable for each key."""
    given: dict[str, Any] = {}
    # In order, so that a key's own variable is added to the JSON of the whole.
    for variable, text in sorted((name.upper(), text) for name, text in environment.items()):
        name, *keys = variable.removeprefix(PREFIX).lower().split(NESTED)
        field = Settings.model_fields.get(name) if variable.startswith(PREFIX) else None
        if field is None:
            continue
        is_mapping = any(get_origin(one) is dict for one in (field.annotation, *get_args(field.annotation)))
        if not keys:
            given[name] = _decoded(variable, text) if is_mapping else text
        elif is_mapping:
            _put(given, [name, *keys], _decoded(variable, text) if text[:1] in ("{", "[") else text)
    return given


def _put(given: dict[str, Any], path: list[str], value: object) -> None:
    place = given
    for depth, key in enumerate(path[:-1], start=1):
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            whole, inner = (PREFIX + NESTED.join(keys).upper() for keys in (path[:depth], path))
            raise InvalidInput(f"{whole}: is not a mapping, which {inner} is a key of; set one of the two")
    place[path[-1]] = value


def _decoded(variable: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        hint = f", or set {variable}__<NAME>=<url> for each sink" if variable == "FEEDQ_SINKS" else ""
        # The text is not quoted: it may be a URL with a password.
        raise InvalidInput(f"{variable}: must be JSON{hint}") from None


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        name = "__".join(str(part) for part in problem["loc"]).upper()
        # pydantic's words for "raised by our own validator", which names the variables itself.
        said = problem["msg"].removeprefix("Value error, ")
        lines.append(f"FEEDQ_{name}: {said}" if name else said)
    return "; ".join(lines)
