"""Options of ``websocket`` feeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import check_format
from feedq.connectors.record_options import CursorOptions
from feedq.connectors.wire.remote import TIMEOUT_S_MAX, Scheme, check_template
from feedq.connectors.wire.request import TOKEN, RequestOptions
from feedq.records.framing import RECORD_BYTES_MAX
from feedq.records.pointer import parse_pointer

Scalar = bool | int | float | str | None
Rule = Mapping[str, Scalar]
"""JSON pointers and the values that a record must have there, all of them."""


class WebsocketOptions(CursorOptions, RequestOptions):
    """Options of a feed with ``connector: websocket``; durations of 0 are never."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {"ws": Scheme(tls=False, port=80), "wss": Scheme(True, 443)}
    OWN_HEADERS: ClassVar[frozenset[str]] = RequestOptions.OWN_HEADERS | {
        f"sec-websocket-{name}" for name in ("accept", "extensions", "key", "protocol", "version")
    }

    url: str
    """`ws://host/path` or `wss://host/path`. Path and query take placeholders."""
    subprotocols: tuple[str, ...] = ()
    """Subprotocols to offer, preferred ones first."""
    ping_interval_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 20.0
    """Time between pings that feedq sends; 0 sends none."""
    ping_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 20.0
    """Reconnects when nothing arrives for this long after a ping; 0 disables it."""
    idle_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 60.0
    """After this long without a message the feed is stalled and reconnects; 0 disables it. Pings do not
    count, messages to `ignore` do."""
    max_record_bytes: Annotated[int, Field(ge=1, le=RECORD_BYTES_MAX)] = 2**20
    """A larger message fails the feed, after everything before it has landed."""
    subscribe: tuple[str, ...] = ()
    """Text message, or a list of them, sent once connected. Takes placeholders."""
    split: Literal["message", "lines"] = "message"
    """What a message holds: one record (`message`), or one or more `lines`, which end with LF or CRLF. Empty
    ones are skipped. CSV is always read as lines."""
    ignore: tuple[dict[str, Scalar], ...] = ()
    """Records to drop, such as heartbeats: a list of mappings of JSON pointers to values, such as `[{/event:
    heartbeat}, {/type: ack}]`. A record must have all values of one entry. Needs `format: json`."""

    @field_validator("subprotocols", mode="before")
    @classmethod
    def _split_subprotocols(cls, value: object) -> object:
        # No name of one holds a comma: in the header, too, it stands between them.
        return tuple(map(str.strip, value.split(","))) if isinstance(value, str) else value

    @field_validator("subprotocols")
    @classmethod
    def _check_subprotocols(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not TOKEN.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid subprotocol name")
        return names

    @field_validator("subscribe", mode="before", json_schema_input_type=str | list[str])
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("subscribe")
    @classmethod
    def _check_subscribe(cls, texts: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for text in texts:
            check_template(text, info)
        return texts

    @field_validator("ignore")
    @classmethod
    def _check_ignore(
        cls, rules: tuple[dict[str, Scalar], ...], info: ValidationInfo
    ) -> tuple[dict[str, Scalar], ...]:
        if rules:
            check_format(info, "json")
        for rule in rules:
            if not rule:
                raise ValueError("holds an entry without a pointer, which would match every record")
            for pointer in rule:
                parse_pointer(pointer)
        return rules
