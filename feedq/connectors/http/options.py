"""Options of ``http`` feeds; those of the request are those of ``sse`` feeds too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

import httpx
from pydantic import Field, ValidationInfo, field_validator, model_validator

from feedq.connectors.record_options import StreamOptions
from feedq.connectors.wire.remote import TIMEOUT_S_MAX, Scheme, check_template, parse_location
from feedq.connectors.wire.request import RequestOptions
from feedq.core.model import JSON
from feedq.records.framing import RECORD_BYTES_MAX
from feedq.records.pointer import parse_pointer
from feedq.records.template import CURSOR

SCHEMES: Final = {"http": Scheme(tls=False, port=80), "https": Scheme(tls=True, port=443)}
FRAMED: Final = "framed"
LINK: Final = "link"
_POLL_ONLY: Final = ("interval_s", "records", "next_cursor", "next_page", "max_response_bytes", "max_records")
_FRAMING: Final = ("framing", "delimiter", "length_bytes", "length_order", "length_counts_itself")


class HttpRequestOptions(RequestOptions):
    """What is asked of an HTTP source, and how long its answer may take."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = SCHEMES
    OWN_HEADERS: ClassVar[frozenset[str]] = RequestOptions.OWN_HEADERS | {"expect", "te"}

    url: str
    """`http://host/path` or `https://host/path`. Path and query take placeholders."""
    method: Literal["GET", "POST"] = "GET"
    """Method of the request."""
    body: Annotated[str, Field(max_length=2**20)] = ""
    """With `method: POST`: body of the request. Takes placeholders."""
    response_timeout_s: Annotated[float, Field(gt=0, le=TIMEOUT_S_MAX)] = 60.0
    """Time limit from a request to the beginning of its response."""

    @field_validator("url")
    @classmethod
    def _check_host(cls, url: str) -> str:
        try:
            httpx.URL(str(parse_location(url, cls.SCHEMES)))
        except httpx.InvalidURL:
            raise ValueError("has an invalid host") from None
        return url

    @field_validator("body")
    @classmethod
    def _check_body(cls, body: str, info: ValidationInfo) -> str:
        if body and info.data.get("method", "POST") != "POST":
            raise ValueError("needs source.method POST")
        return check_template(body, info)

    @property
    def asks_with_cursor(self) -> bool:
        """Whether the cursor stands anywhere in the request."""
        return any(f"{{{CURSOR}}}" in text for text in (self.url, self.body, *self.headers.values()))


class HttpOptions(HttpRequestOptions, StreamOptions):
    """Options of a feed with ``connector: http``."""

    mode: Literal["stream", "poll"] = "stream"
    """`stream` reads one endless response, `poll` asks again and again."""
    idle_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 60.0
    """With `mode: stream`: after this long without data the feed is stalled and reconnects; 0 disables it."""
    response_timeout_s: Annotated[float, Field(gt=0, le=TIMEOUT_S_MAX)] = 60.0
    """Time limit from a request to the beginning of its response; with `mode: poll`, as long again for the
    rest."""
    interval_s: Annotated[float, Field(ge=0.1, le=TIMEOUT_S_MAX)] = 60.0
    """With `mode: poll`: time from one poll to the next."""
    records: str | None = None
    """With `mode: poll`: JSON pointer to the list of records in a response (`""` if the response is the
    list), or `framed` to split the response by `framing`. Without it, a response is one record."""
    next_cursor: str | None = None
    """With `mode: poll`, instead of `cursor`: JSON pointer to the next request's cursor in a response. If
    nothing is there, the cursor stays."""
    next_page: str | None = None
    """With `mode: poll`: where a response names the next page: `link` (header `Link` with `rel="next"`) or a
    JSON pointer."""
    max_response_bytes: Annotated[int, Field(ge=1, le=RECORD_BYTES_MAX)] = 16 * 2**20
    """With `mode: poll`: a larger response, unpacked, fails the feed."""
    max_records: Annotated[int, Field(ge=1, le=1_000_000)] = 200_000
    """With `mode: poll`: a response (a page) with more records fails the feed."""

    def cursor_back(self, cursor: JSON, records: int) -> JSON:
        # What is known of the last answer, and would leave records of it out, is forgotten.
        if self.mode == "poll":
            return {"at": super().cursor_back(self._sources_cursor(cursor), records)}
        return super().cursor_back(cursor, records)

    def cursor_place(self, cursor: JSON) -> int:
        return super().cursor_place(self._sources_cursor(cursor))

    def cursor_said(self, said: JSON, like: JSON) -> JSON:
        at = super().cursor_said(self._sources_cursor(said), self._sources_cursor(like))
        return {"at": at} if self.mode == "poll" else at

    def _sources_cursor(self, cursor: JSON) -> JSON:
        """The source's own cursor: that of a poll says besides what is known of the last answer."""
        is_poll = self.mode == "poll" and isinstance(cursor, dict) and "at" in cursor
        return cursor["at"] if is_poll and isinstance(cursor, dict) else cursor

    @field_validator("records", "next_cursor", "next_page")
    @classmethod
    def _check_pointer(cls, value: str | None, info: ValidationInfo) -> str | None:
        word = {"records": FRAMED, "next_page": LINK}.get(info.field_name or "")
        if value is not None and value != word:
            parse_pointer(value)
            if info.data.get("format", "json") != "json":
                raise ValueError(f"is a JSON pointer and needs source.format json, not {info.data['format']}")
        return value

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode == "stream":
            self._refuse(_POLL_ONLY, "need source.mode poll")
            return self
        if self.records != FRAMED:
            self._refuse(_FRAMING, "need source.records framed")
            if self.csv is not None:
                raise ValueError("format csv needs records: framed")
        if self.cursor is not None and self.records is None:
            raise ValueError("cursor points into a record, and needs records")
        if self.cursor is not None and self.next_cursor is not None:
            raise ValueError("cursor and next_cursor exclude each other")
        if self.cursor is not None or self.next_cursor is not None:
            name = "cursor" if self.cursor is not None else "next_cursor"
            if not self.asks_with_cursor:
                raise ValueError(f"{name} has no effect without {{cursor}} in url, headers or body")
        return self

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        given = [name for name in names if name in self.model_fields_set]
        if given:
            raise ValueError(f"{', '.join(given)} {why}")
