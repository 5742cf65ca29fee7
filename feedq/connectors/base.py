"""What a connector is: an async generator of batches.

A connector opens its source at a cursor and yields `feedq.model.Batch` after batch; the runner takes the
next one only when there is room for it, so a connector that waits for its consumer has backpressure for
free. It reports trouble by raising:

* `SourceUnavailable` for what another try may mend (refused, reset, silent, closed by the peer);
* `FeedMisconfigured` for what only an edit can (a bad option, refused credentials).

Any other exception counts as `SourceUnavailable` and is logged with its traceback. Cancelling the
generator must end it within a second.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from feedq.clock import Clock
from feedq.connectors.template import RESERVED
from feedq.errors import InvalidInput
from feedq.model import JSON, Batch
from feedq.secrets import check_secret_name, parse_reference

ENTRY_POINT_GROUP = "feedq.connectors"

RecordFormat = Literal["json", "text", "bytes"]


class ConnectorOptions(BaseModel):
    """Base of every connector's options: unknown ones are refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    format: RecordFormat = Field(
        default="json",
        description="What a record is, `json`, `text` or `bytes`: decides the type of the payload column.",
    )
    secrets: dict[str, str] = Field(
        default={},
        description="Names to references, `${env:NAME}` or `${file:/path}`, for `{name}` in other options. "
        "They are resolved on the worker; values are never stored or shown.",
    )

    @field_validator("secrets")
    @classmethod
    def _check_secrets(cls, secrets: dict[str, str]) -> dict[str, str]:
        for name, reference in secrets.items():
            check_secret_name(name)
            if name in RESERVED:
                raise ValueError(f"{name!r} stands for something else in a template; choose another name")
            try:
                parse_reference(reference)
            except ValueError as error:
                raise ValueError(f"{name!r} {error}") from None
        return secrets


class SocketGuard(Protocol):
    """Knows the sockets of a feed, so that they can be shut while the event loop is stuck."""

    def watch(self, fileno: int) -> None: ...

    def forget(self, fileno: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Context:
    """What the runner tells a connector about its feed."""

    feed: str
    clock: Clock
    guard: SocketGuard
    on_connected: Callable[[], None]
    """To be called once the source has accepted us and may send."""
    secrets: Mapping[str, str]
    """Resolved on this worker; for the wire only, never for a message or a log."""


class Connector(Protocol):
    """One source of one feed. Made anew for each connection attempt."""

    Options: ClassVar[type[ConnectorOptions]]

    def __init__(self, options: Any, context: Context) -> None: ...

    def stream(self, cursor: JSON) -> AsyncIterator[Batch]:
        """Connect and yield batches after ``cursor``; None means wherever the source begins."""


@cache
def load_connector(kind: str) -> type[Connector]:
    """Looked up once a process: reading the installed packages takes milliseconds, and each feed asks.

    Raises `InvalidInput` when there is no such connector or it cannot be imported.
    """
    found = entry_points(group=ENTRY_POINT_GROUP, name=kind)
    if not found:
        known = ", ".join(sorted(e.name for e in entry_points(group=ENTRY_POINT_GROUP)))
        raise InvalidInput(f"unknown connector {kind!r}; installed are: {known or 'none'}")
    entry = next(iter(found))
    try:
        loaded: type[Connector] = entry.load()
    except Exception as error:
        raise InvalidInput(f"connector {kind!r} ({entry.value}) cannot be imported: {error}") from error
    return loaded


def parse_options(kind: str, source: Mapping[str, Any]) -> ConnectorOptions:
    """Validate a feed's ``source``. Raises `InvalidInput`, naming each option that is wrong."""
    options = load_connector(kind).Options
    try:
        return options.model_validate(dict(source))
    except ValidationError as error:
        raise InvalidInput(explain_options("source", error, options)) from None


def explain_options(where: str, error: ValidationError, options: type[BaseModel]) -> str:
    """One sentence a wrong option, without its value: that may be a secret."""
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        path = ".".join([where, *(str(part) for part in problem["loc"])])
        if problem["type"] == "extra_forbidden":
            lines.append(f"{path}: unknown option; known are {', '.join(sorted(options.model_fields))}")
        else:
            # pydantic's words for "raised by our own validator", which says enough by itself.
            lines.append(f"{path}: {problem['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines)
