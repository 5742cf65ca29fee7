"""What connectors of message brokers share: their options, and how messages become records and batches.

A record is a message's payload, or, with ``envelope``, a JSON object of what the broker says of the message
and ``data``: the payload as it stands when it is JSON, else as a string, else, when it is not text, as base64
under ``data_base64``. A message without payload is no record, unless it has an envelope.

Nothing here knows a protocol.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256

import orjson
from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import Context, CsvFormat
from feedq.connectors.records.cursor import show_cursor
from feedq.connectors.records.framing import CR, LF
from feedq.connectors.records.framing_options import BUFFER_BYTES_MAX, RECORD_BYTES_MAX
from feedq.connectors.records.pointer import is_json
from feedq.connectors.wire.remote import TIMEOUT_S_MAX, RemoteOptions, check_template
from feedq.connectors.wire.template import compile_template, wire_values
from feedq.errors import FeedMisconfigured
from feedq.model import JSON, Batch

_NEITHER_LETTER_NOR_DIGIT = re.compile(r"[^A-Za-z0-9]+")


class MessageOptions(RemoteOptions):
    """Base of the options of connectors of message brokers."""

    idle_timeout_s: float = Field(
        default=60.0,
        ge=0,
        le=TIMEOUT_S_MAX,
        description="A connection on which nothing comes for this long, not even the answer to a ping or a "
        "heartbeat, is stalled and made anew; 0 is never.",
    )
    username: str | None = Field(
        default=None, description="Name to log in with; `{secret}` stands for the secret of that name."
    )
    password: str | None = Field(
        default=None, description='Its password: `"{name}"` for the secret of that name in `secrets`.'
    )
    envelope: bool = Field(
        default=False,
        description="A record is a JSON object of what the broker says of the message, with its payload as `data` "
        "(`data_base64` if that is not text), instead of the payload alone.",
    )
    max_record_bytes: int = Field(
        default=2**20,
        ge=1,
        le=RECORD_BYTES_MAX,
        description="A larger payload fails the feed, with everything before it landed, until this is raised.",
    )
    buffer_bytes: int = Field(
        default=4 * 2**20,
        ge=1,
        le=BUFFER_BYTES_MAX,
        description="Received bytes that wait to be taken before nothing more is asked for.",
    )

    @field_validator("csv")
    @classmethod
    def _check_header(cls, csv: CsvFormat | None) -> CsvFormat | None:
        if csv is not None and csv.header:
            raise ValueError("messages have no header lines; leave out csv.header")
        return csv

    @field_validator("username", "password")
    @classmethod
    def _check_credentials(cls, text: str | None, info: ValidationInfo) -> str | None:
        return None if text is None else check_template(text, info)

    @field_validator("envelope")
    @classmethod
    def _check_envelope(cls, envelope: bool, info: ValidationInfo) -> bool:
        if envelope and info.data.get("format", "json") != "json":
            raise ValueError(f"needs source.format json, not {info.data['format']}")
        return envelope


def name_at_source(environment: str, feed: str) -> str:
    """What a feed is called at its source: the same on every worker, another one for each feed.

    Of letters, digits and dashes only, which every server allows.
    """
    readable = _NEITHER_LETTER_NOR_DIGIT.sub("-", f"{environment}-{feed}")[:40].strip("-")
    exact = sha256("\0".join((environment, feed)).encode()).hexdigest()[:8]
    return f"feedq-{readable}-{exact}"


def fill_in(template: str | None, context: Context) -> str | None:
    """A credential for the wire, out of an option and the feed's secrets."""
    if template is None:
        return None
    values = wire_values(feed=context.feed, cursor=None, secrets=context.secrets)
    filled = compile_template(template, secrets=context.secrets).render(values)
    return filled.decode("utf-8", "surrogateescape")


def enclose(about: Mapping[str, JSON], payload: bytes) -> bytes:
    """A message with its envelope."""
    return orjson.dumps({**about, **payload_member(payload)})


def payload_member(payload: bytes) -> dict[str, orjson.Fragment | str]:
    """``data`` or ``data_base64`` of an envelope."""
    # It must be one value: text that goes on behind it could forge the envelope.
    return {"data": orjson.Fragment(payload)} if is_json(payload) else text_member("data", payload)


def text_member(name: str, value: bytes) -> dict[str, orjson.Fragment | str]:
    """A value that may be text or not, as a member of a JSON object."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


def batch_of(
    payloads: Sequence[bytes],
    *,
    cursor: JSON,
    received_at: datetime,
    on_committed: Callable[[], None] | None = None,
) -> Batch:
    """Records in whichever form of `Batch` holds them; there is at least one."""
    lines = LF.join(payloads) + LF
    fits = CR not in lines and lines.count(LF) == len(payloads) and all(payloads)
    if fits:
        return Batch.of_lines(lines, cursor=cursor, received_at=received_at, on_committed=on_committed)
    return Batch.of_records(payloads, cursor=cursor, received_at=received_at, on_committed=on_committed)


def oversize(where: object, options: MessageOptions, *, size: int, after: JSON) -> FeedMisconfigured:
    """The error that a payload over the limit ends the feed with."""
    return FeedMisconfigured(
        f"{where}: payload of {size} bytes after cursor {show_cursor(after)}, at most "
        f"{options.max_record_bytes} are allowed; raise source.max_record_bytes"
    )
