"""Options of ``nats`` feeds, and their cursors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.messages import MessageOptions
from feedq.connectors.wire.remote import Scheme, check_template
from feedq.core.model import JSON

PORT: Final = 4222
Deliver = Literal["all", "new", "last"]
_STREAM = re.compile(r"[^\s.*>/\\]+")
_SUBJECT = re.compile(r"[^\s.>]+(\.[^\s.>]+)*(\.>)?|>")


@dataclass(frozen=True, slots=True)
class NatsCursor:
    """The cursor: a sequence of a stream, and which stream of that name it was."""

    seq: int
    created: str

    @classmethod
    def of(cls, cursor: JSON) -> NatsCursor | None:
        match cursor:
            case {"seq": int(seq), "created": str(created)}:
                return cls(seq, created)
        return None

    def cursor(self) -> JSON:
        return {"seq": self.seq, "created": self.created}


class NatsOptions(MessageOptions):
    """Options of a feed with ``connector: nats``."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {
        "nats": Scheme(tls=False, port=PORT),
        "tls": Scheme(tls=True, port=PORT),
    }
    TAKES_PATH: ClassVar[bool] = False

    url: str
    """`nats://host` or `tls://host`; default port 4222. Needs NATS 2.9 or later."""
    stream: Annotated[str, Field(min_length=1, max_length=255)]
    """JetStream stream to read."""
    subjects: Annotated[tuple[str, ...], Field(max_length=256)] = ()
    """Subjects to read, such as `orders.*.created` or `orders.>`. Default: all. Several need NATS 2.10."""
    deliver: Deliver = "all"
    """Which messages a feed without a cursor gets: `all`, only `new` ones, or from the `last` one on. A work
    queue is always read from its beginning."""
    domain: Annotated[str | None, Field(min_length=1, max_length=255)] = None
    """JetStream domain of the stream, behind leaf nodes."""
    token: str | None = None
    """Token to log in with: `"{name}"` for a secret."""
    nkey_seed: str | None = None
    """Seed of an nkey to log in with: `"{name}"` for a secret."""
    credentials: str | None = None
    """Content of a credentials file (JWT and nkey) to log in with: `"{name}"` for a secret, such as
    `${file:/path/feed.creds}`."""
    inbox_prefix: str = "_INBOX"
    """Prefix of reply subjects, for a user who may not subscribe to the default."""
    max_unacknowledged: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    """Most messages that may wait for their commit."""
    batch_messages: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    """Most messages to request ahead; fewer while few come or memory is short."""

    def check_cursor(self, cursor: JSON) -> None:
        if NatsCursor.of(cursor) is None:
            raise ValueError('must say a sequence and its stream, as {"seq": 12, "created": "2026-…"} does')

    def cursor_back(self, cursor: JSON, records: int) -> JSON:
        """By sequences of the stream, of which a subject may have some only."""
        position = NatsCursor.of(cursor)
        if position is None:
            raise ValueError("it is not a sequence of a stream")
        return NatsCursor(max(0, position.seq - records), position.created).cursor()

    def cursor_place(self, cursor: JSON) -> int:
        position = NatsCursor.of(cursor)
        if position is None:
            raise ValueError("it is not a sequence of a stream")
        return position.seq

    def cursor_said(self, said: JSON, like: JSON) -> JSON:
        """A sequence, of the same stream as the other cursor unless it says which."""
        known = NatsCursor.of(like)
        if isinstance(said, int) and not isinstance(said, bool) and known is not None:
            return NatsCursor(said, known.created).cursor()
        return super().cursor_said(said, like)

    @field_validator("stream", "domain")
    @classmethod
    def _check_stream(cls, name: str | None) -> str | None:
        if name is not None and not _STREAM.fullmatch(name):
            raise ValueError("must be a name without spaces, dots, slashes and wildcards")
        return name

    @field_validator("subjects", "inbox_prefix")
    @classmethod
    def _check_subjects(cls, value: tuple[str, ...] | str) -> tuple[str, ...] | str:
        for subject in (value,) if isinstance(value, str) else value:
            if not _SUBJECT.fullmatch(subject):
                raise ValueError(
                    f"{subject!r} is not a subject: words with dots between, `>` only at the end"
                )
        if not isinstance(value, str) and len(set(value)) < len(value):
            raise ValueError("names a subject twice")
        return value

    @field_validator("token", "nkey_seed", "credentials")
    @classmethod
    def _check_login(cls, text: str | None, info: ValidationInfo) -> str | None:
        if text is None:
            return None
        for other in ("username", "token", "nkey_seed", "credentials"):
            if other != info.field_name and info.data.get(other) is not None:
                raise ValueError(f"cannot go with source.{other}: one way to log in is enough")
        return check_template(text, info)
