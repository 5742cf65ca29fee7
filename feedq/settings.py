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
    """The control database (PostgreSQL)."""
    database_timeout_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """How long the other end of a database session may be silent before feedq and the server give the
    session up, as after a power loss. 0 leaves it to the operating systems, which take hours."""
    broker_url: SecretStr = SecretStr("redis://localhost:6379/0")
    """Celery's broker: Valkey or Redis (`redis://`), or RabbitMQ (`amqp://`)."""
    sinks: dict[str, SecretStr] = {}
    """Sink databases by name. `default` is the control database unless set."""
    catalogs: Annotated[dict[str, dict[str, Any]], Field(repr=False)] = {}
    """Catalogs for `feedq sync`: `FEEDQ_CATALOGS__<NAME>__KIND` is `directory`, `http`, `sql`, `mongodb` or
    `dynamodb`; each option is a variable of its own."""
    sync_database_url: SecretStr = SecretStr("")
    """Control database with a role that may declare feeds, for workers that run syncs as schedules. Empty:
    `FEEDQ_DATABASE_URL`."""
    environment: Annotated[str, Field(min_length=1, max_length=64)] = "default"
    """Separates the checkpoints of several feedq installations in one sink database."""

    heartbeat_s: Seconds = 2.0
    """Interval of a worker's heartbeat."""
    ttl_s: Annotated[float, Field(ge=0.5, le=86_400)] = 6.0
    """How long after its last heartbeat a silent worker counts as gone."""
    reconcile_interval_s: Seconds = 5.0
    """Interval of `reconcile`; changes also trigger it at once."""
    settle_s: Seconds = 1.5
    """Age at which a new worker receives running feeds from others. When a whole fleet starts, nothing is
    placed before one worker is this old."""
    expect: Annotated[dict[str, Any], BeforeValidator(read_expectations)] = {}
    """Expectations of every feed: `{"max_silence": "5m", "max_refused": "1%"}`. A tenant or a feed
    can set its own with the same keys. For beats; with `max_event_lag`, also for workers."""
    tenant_expect: dict[str, Annotated[dict[str, Any], BeforeValidator(read_expectations)]] = {}
    """Expectations of a tenant's feeds: `{"acme": {"max_silence": "30s"}}`."""
    drift_add: bool = False
    """Let workers add columns for feeds with `drift: add` when a record has a new field; otherwise use
    `feedq feed drift`. The sink's role must own the table."""
    alert_urls: SecretStr = SecretStr("")
    """Where the elected beat sends alerts: apprise addresses, separated by spaces (`mailto://…
    slack://…`). Needs the extra `alerts`."""
    tenant_alert_urls: dict[str, SecretStr] = {}
    """Addresses for alerts about one tenant's feeds: `{"acme": "mailto://…"}`."""
    alert_interval_s: Seconds = 30.0
    """Shortest time between two messages to one address."""
    placement: Strategy = Strategy.BALANCED
    """Which worker gets a feed: `balanced`, the least utilised; or `rendezvous`, by hash, unless that
    worker is too full."""
    measured_load: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How much measured rows and bytes count in a feed's load: with 0 only its `weight` counts, with 1 only the
    measurement."""
    tenant_caps: dict[str, Annotated[int, Field(ge=0)]] = {}
    """Maximum number of feeds of one tenant on one worker: `{"acme": 20}`; `*` stands for all other tenants."""
    moves_per_pass: Annotated[int, Field(ge=0, le=100_000)] = 50
    """Maximum number of feeds moving between workers at a time; 0 turns rebalancing off."""
    handoff_timeout_s: Seconds = 30.0
    """An owner that does not let go of a feed within this time loses it."""
    restart_hold_s: Seconds = 0.0
    """How long the feeds of a stopped worker wait for its successor of the same name. After a crash they
    never wait."""
    connects_per_s: Annotated[float, Field(ge=0, le=1_000_000)] = 500.0
    """Connections to sources that one worker opens per second; 0 means no limit."""
    host_connects_per_s: dict[str, Annotated[float, Field(ge=0, le=1_000_000)]] = {"*": 200.0}
    """Connections that all workers together open per second to one remote host:
    `{"feeds.example.com": 20}`; `*` stands for all other hosts, 0 means no limit."""
    backoff_max_s: Seconds = 30.0
    """Longest delay before reconnecting; the first is 0.2 s."""

    job_slots: Annotated[int, Field(ge=1, le=256)] = 4
    """Scheduled jobs that each worker runs at a time, and threads for ordinary tasks. With `-Q jobs`, `-c`
    sets it instead."""
    drain_timeout_s: Seconds = 1.5
    """A stopping worker cuts streams off after this time."""
    job_drain_s: Seconds = 30.0
    """How long a stopping worker waits for running jobs; afterwards they are lost or run again elsewhere,
    as declared."""
    visibility_timeout_s: Annotated[int, Field(ge=1, le=31_536_000)] = 3600
    """Redis: time after which an unacknowledged ordinary task is run again."""
    broker_timeout_s: Annotated[float, Field(ge=1, le=600)] = 5.0
    """Time limit for connecting to the broker, sending, and waiting for an answer."""
    worker_labels: dict[str, str] = {}
    """Labels of this worker."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Port of a worker's `/metrics`, `/healthz` and `/readyz`; 0 is off."""
    metrics_host: str = "127.0.0.1"
    """Address that the metrics port listens on."""
    beat_metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """The same port for a beat, which also serves the fleet's metrics; 0 is off."""

    flush_interval_s: Seconds = 0.25
    """How long a received record waits for its group commit, at most."""
    stall_s: Annotated[float, Field(ge=0, le=86_400)] = 5.0
    """A worker whose event loop is blocked for this long is ended, and its feeds continue elsewhere; so is
    one with another thread blocked for 4 s. 0 turns both off."""
    memory_limit: Annotated[int, Field(ge=0)] = 0
    """Bytes that a worker process may use; close to it, the feed that grew most is moved out. 0: the limit
    of its container or cgroup."""
    state_dir: str = ""
    """Where workers keep the notes that explain a crash. Empty: shared memory, or the directory for
    temporary files."""
    inflight_bytes_total: Annotated[int, Field(ge=1)] = 64 * 2**20
    """Bytes received but not committed at which a worker stops reading; a single feed stops at a quarter. A
    feed that has none in flight may still read one record or batch."""

    tenant_limits: dict[str, RateLimits] = {}
    """Rate limits of a tenant over all its feeds and workers: `{"acme": {"rows_per_s": 5000,
    "bytes_per_s": 1000000}}`; `*` stands for all other tenants."""

    egress_deny: CommaSeparated = ()
    """Networks (CIDR) that feeds may not connect to, besides link-local and metadata addresses."""
    egress_allow: CommaSeparated = ()
    """Networks that feeds may connect to although they are denied."""
    exec_allow: CommaSeparated = ()
    """Absolute paths of the programs that `exec` feeds may run."""
    secrets_allow: dict[str, tuple[str, ...]] | None = None
    """Secrets that feeds may use, by tenant: `{"acme": ["env:ACME_*", "file:/run/secrets/acme/*"],
    "*": []}`. `*` at the end matches any ending. Unset, every feed may use every secret that a worker can
    read."""

    role_prefix: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,29}$")] = "feedq_"
    """Prefix of the database roles that `feedq db grants` creates."""
    role_passwords: dict[str, SecretStr] = {}
    """Passwords for `feedq db grants --apply`, one variable per role: `FEEDQ_ROLE_PASSWORDS__<ROLE>`."""

    api_loopback_role: Literal["none", "viewer", "operator", "admin"] = "none"
    """Role of whoever calls the HTTP API from this machine without a token. Not for shared machines, nor
    behind a proxy on the same machine."""
    flower_roles: dict[str, str] = {}
    """Roles of Flower's users: `{"ada": "operator", "ben": "operator:acme", "*": "viewer"}`; a
    tenant may follow the role. `*` stands for everybody else, who are viewers by default."""
    flower_hosts: CommaSeparated = ()
    """Host names by which browsers may reach Flower, besides addresses and `localhost`; `*` is any."""

    imports: CommaSeparated = ()
    """Modules with your own tasks, imported by each worker."""
    run_retention_days: Annotated[int, Field(ge=0, le=3650)] = 30
    """How many days ended runs are kept."""
    event_retention_days: Annotated[int, Field(ge=0, le=3650)] = 14
    """How many days history is kept."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Minimum severity of log events."""
    log_format: Literal["console", "json"] = "console"
    """`json` writes one object per line."""

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
                raise ValueError(f"{program!r} is not an absolute path")
        return programs

    @field_validator("flower_roles")
    @classmethod
    def _check_roles(cls, roles: dict[str, str]) -> dict[str, str]:
        for user, said in roles.items():
            if said.partition(":")[0] not in ("viewer", "operator", "admin"):
                raise ValueError(
                    f"{user!r}: {said!r} is not a role such as viewer, operator, admin or operator:TENANT"
                )
        return roles

    @field_validator("secrets_allow")
    @classmethod
    def _check_secrets(cls, allowed: dict[str, tuple[str, ...]] | None) -> dict[str, tuple[str, ...]] | None:
        for tenant, patterns in (allowed or {}).items():
            for pattern in (tenant, *patterns):
                if "*" in pattern[:-1]:
                    raise ValueError(f"{pattern!r}: * is allowed only at the end")
            for pattern in patterns:
                if pattern != "*" and not pattern.startswith(("env:", "file:/")):
                    raise ValueError(f"{pattern!r} must be env:NAME, file:/path or *")
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
        raise ValueError("is not a URL such as postgresql://user@host/database")
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
            raise InvalidInput(
                f"{whole}: is not a mapping, but {inner} sets a key of it; set only one of the two"
            )
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
