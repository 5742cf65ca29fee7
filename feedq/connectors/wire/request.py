"""Options of connectors that make a request: what of it changes with the feed, its cursor and its secrets.

Placeholders in the URL and the headers are filled in as plain text, not as JSON: a cursor that is a string comes
without its quotes. In the URL it is percent-encoded. A filled in request may hold secrets: it is for the wire
only, and nothing here quotes any of it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Annotated, ClassVar, Final
from urllib.parse import quote

import msgspec
from pydantic import Field, ValidationInfo, field_validator

from feedq import __version__
from feedq.connectors.base import Context
from feedq.connectors.wire.remote import RemoteOptions, check_template, parse_location
from feedq.core.model import JSON, known_as
from feedq.errors import FeedMisconfigured
from feedq.records.template import CURSOR, NAME, Template, compile_template

USER_AGENT = f"feedq/{__version__}"
"""Some public sources refuse requests without one."""

TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
"""What HTTP calls so: the name of a header, among others."""
_HEADER_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_AS_IT_STANDS = "".join(map(chr, range(0x21, 0x7F)))
"""What a URL may hold, the percent sign of what is already encoded included."""


RETRY_AFTER_S_MAX: Final = 3600.0
"""A source that asks for a longer pause is asked again after this one."""


class RequestOptions(RemoteOptions):
    """A URL and headers with placeholders."""

    OWN_HEADERS: ClassVar[frozenset[str]] = frozenset(
        ("host", "connection", "content-length", "transfer-encoding", "upgrade")
    )
    """In lower case: those that the protocol sets, and no feed may."""

    headers: dict[str, str] = Field({})
    """Headers of the request, such as `Authorization: Bearer {token}`. Take placeholders."""
    initial_cursor: Annotated[str | int | None, Field(validate_default=True)] = None
    """Value of `{cursor}` while the feed has no cursor."""

    @field_validator("url")
    @classmethod
    def _check_target(cls, url: str, info: ValidationInfo) -> str:
        location = parse_location(url, cls.SCHEMES)
        if "{" in location.host:
            raise ValueError("takes placeholders in its path and query only")
        return check_template(url, info)

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        for name, value in headers.items():
            if not TOKEN.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid header name")
            if name.lower() in cls.OWN_HEADERS:
                raise ValueError(f"{name!r} is set by feedq itself")
            check_template(value, info)
        return headers

    @field_validator("initial_cursor")
    @classmethod
    def _check_initial_cursor(cls, initial: str | int | None, info: ValidationInfo) -> str | int | None:
        if initial is None and "url" in info.data:
            path, _, _ = parse_location(info.data["url"], cls.SCHEMES).target.partition("?")
            if f"{{{CURSOR}}}" in path:
                raise ValueError(
                    "is needed for a {cursor} in the path of source.url, which cannot be left out"
                )
        return initial

    def target(self, context: Context, cursor: JSON) -> str:
        """Path and query of the request that resumes after ``cursor``, in ASCII; the path begins with a slash."""
        values = self._values(context, cursor)
        encoded = {name: quote(value, safe="").encode() for name, value in values.items()}
        path, _, query = self.location.target.partition("?")
        parameters = [self._render(part, encoded, context) for part in query.split("&")]
        kept = b"&".join(parameter for parameter in parameters if parameter)
        filled = (self._render(path, encoded, context) or b"/") + (b"?" + kept if kept else b"")
        return quote(filled, safe=_AS_IT_STANDS)

    def request_headers(self, context: Context, cursor: JSON) -> dict[str, str]:
        """The headers of that request, each byte of a value one character; with a ``User-Agent``.

        Raises:
            FeedMisconfigured: what was filled in cannot stand in a header.
        """
        values = self._values(context, cursor)
        filled = {name: self._render(text, values, context) for name, text in self.headers.items()}
        for name, value in filled.items():
            if value is not None and not _HEADER_VALUE.fullmatch(value):
                raise FeedMisconfigured(
                    f"source.headers {name}: holds a line break or another control character; look at its secrets"
                )
        # Spaces around a value are no part of it in HTTP, and h11 refuses to send them.
        headers = {
            name: value.strip(b" \t").decode("latin-1") for name, value in filled.items() if value is not None
        }
        if "user-agent" not in map(str.lower, headers):
            headers["User-Agent"] = USER_AGENT
        return headers

    def resumed_after(self, cursor: JSON) -> JSON:
        """What stands for ``{cursor}``: the cursor, or what is to stand for none."""
        return self.initial_cursor if cursor is None else cursor

    def _values(self, context: Context, cursor: JSON) -> dict[str, bytes]:
        """What fills the placeholders. No cursor, no value for it."""
        values = {name: value.encode("utf-8", "surrogateescape") for name, value in context.secrets.items()}
        values[NAME] = known_as(context.feed).encode()
        cursor = self.resumed_after(cursor)
        if cursor is not None:
            values[CURSOR] = cursor.encode() if isinstance(cursor, str) else msgspec.json.encode(cursor)
        return values

    def _render(self, text: str, values: dict[str, bytes], context: Context) -> bytes | None:
        """Fills in a text; None: it holds a cursor, and there is none."""
        template: Template = compile_template(text, secrets=context.secrets)
        if CURSOR in template.names and CURSOR not in values:
            return None
        return template.render(values)


def retry_after_s(text: str, *, now: datetime) -> float | None:
    """When a busy server wants to be asked again by ``Retry-After``, in seconds or as a date (RFC 9110, 10.2.3).

    At most `RETRY_AFTER_S_MAX`; None if it says nothing that makes sense.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return min(float(text), RETRY_AFTER_S_MAX)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return min(max(0.0, (at - now).total_seconds()), RETRY_AFTER_S_MAX)


def status_name(status: int) -> str:
    """A status for a message, with its phrase if the standard knows it."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
