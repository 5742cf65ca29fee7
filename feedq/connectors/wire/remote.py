"""Options of connectors that dial a URL, the URL taken apart, and requests whose URL and headers are filled in.

What is refused is never quoted, and what is shown of a URL is scheme, host and port: the rest may hold a token.

Placeholders in the URL and the headers are filled in as plain text, not as JSON: a cursor that is a string comes
without its quotes. In the URL it is percent-encoded. A filled in request may hold secrets: it is for the wire
only, and nothing here quotes any of it.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property, lru_cache
from http import HTTPStatus
from ipaddress import IPv6Address
from typing import Annotated, ClassVar, Final
from urllib.parse import quote, urlsplit

import msgspec
from pydantic import Field, ValidationInfo, field_validator

from feedq import __version__
from feedq.connectors.base import ConnectorOptions, Context
from feedq.core.model import JSON, known_as
from feedq.errors import FeedMisconfigured
from feedq.records.template import CURSOR, NAME, Template, compile_template

TIMEOUT_S_MAX = 86_400
BUFFER_BYTES_MAX = 16 * 2**20
"""What is read at once is looked through at once."""
TLS_CONTEXTS_MAX = 64
"""Contexts kept; beyond it they are made anew, which only costs time."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """What a URL may begin with."""

    tls: bool
    port: int | None
    """Where a URL without a port goes; None: it needs one."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a source is."""

    scheme: str
    host: str
    port: int
    tls: bool
    target: str
    """Path and query, as they stand; perhaps with placeholders."""

    @property
    def authority(self) -> str:
        """``host:port``, an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def parse_location(url: str, schemes: Mapping[str, Scheme]) -> Location:
    """Raises `ValueError`, saying what is wrong without repeating ``url``."""
    shape = f"must be {_forms(schemes)} (an IPv6 address in brackets)"
    name, separator, _ = url.partition("://")
    scheme = schemes.get(name)
    if not separator or scheme is None:
        raise ValueError(shape)
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError(f"holds a space or a control character; it {shape}")
    try:
        parts = urlsplit(url)
        port = parts.port or scheme.port
    except ValueError:
        raise ValueError(f"host or port cannot be read; it {shape}") from None
    if "@" in parts.netloc:
        raise ValueError("takes no user and password; give them as options, from source.secrets")
    if parts.port == 0 or port is None:
        raise ValueError(f"needs a port from 1 to 65535; it {shape}")
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    return Location(name, _host(parts.hostname, bracketed="[" in parts.netloc), port, scheme.tls, target)


def _forms(schemes: Mapping[str, Scheme]) -> str:
    return " or ".join(f"{name}://host{'' if scheme.port else ':port'}" for name, scheme in schemes.items())


def _host(host: str | None, *, bracketed: bool) -> str:
    if not host:
        raise ValueError("needs a host")
    try:
        if bracketed:
            IPv6Address(host)
        else:
            # What the resolver does later; a label that is empty or too long fails here, not on the worker.
            host.encode("idna")
    except ValueError:
        raise ValueError("has an invalid host") from None
    return host


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What identifies a context. Paths are of PEM files on the worker; None means the system's or none."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True


class RemoteOptions(ConnectorOptions):
    """Base of the options of connectors that dial a URL."""

    SCHEMES: ClassVar[Mapping[str, Scheme]] = {}
    TAKES_PATH: ClassVar[bool] = True
    """Whether anything may follow host and port."""

    url: str
    """Address of the source."""
    connect_timeout_s: Annotated[float, Field(gt=0, le=TIMEOUT_S_MAX)] = 10.0
    """Time limit for name resolution, connection and handshakes together."""
    idle_timeout_s: Annotated[float, Field(ge=0, le=TIMEOUT_S_MAX)] = 60.0
    """After this long without data the feed is stalled and reconnects; 0 disables it."""
    verify: bool = True
    """TLS: verify the source's certificate and its name."""
    ca_file: str | None = None
    """TLS: PEM file with certificates to trust instead of the system's."""
    cert_file: str | None = None
    """TLS: PEM file with the client certificate."""
    key_file: str | None = None
    """TLS: PEM file with its unencrypted private key, unless `cert_file` holds both."""
    server_name: str | None = None
    """TLS: name to ask for (SNI) and to verify, if it is not the host."""
    buffer_bytes: Annotated[int, Field(ge=1, le=BUFFER_BYTES_MAX)] = 512 * 1024
    """Received bytes that may wait before reading pauses."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        target = parse_location(url, cls.SCHEMES).target
        if not cls.TAKES_PATH and (target not in ("", "/") or url.endswith(("#", "?"))):
            raise ValueError(f"has something after the port; it must be {_forms(cls.SCHEMES)}")
        return url

    @field_validator("verify", "ca_file", "cert_file", "key_file", "server_name")
    @classmethod
    def _check_tls(cls, value: bool | str | None, info: ValidationInfo) -> bool | str | None:
        url = info.data.get("url")
        is_set = value is not None and value is not True
        if is_set and url is not None and not parse_location(url, cls.SCHEMES).tls:
            schemes = " or ".join(f"{name}://" for name, scheme in cls.SCHEMES.items() if scheme.tls)
            raise ValueError(f"needs a {schemes} source.url")
        if is_set and info.field_name == "key_file" and info.data.get("cert_file") is None:
            raise ValueError("needs source.cert_file")
        return value

    @cached_property
    def location(self) -> Location:
        return parse_location(self.url, self.SCHEMES)

    @cached_property
    def remote_host(self) -> str:
        return self.location.host.lower()

    @property
    def peer(self) -> str:
        return str(self.location)

    @cached_property
    def tls_files(self) -> TlsFiles:
        return TlsFiles(
            ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file, verify=self.verify
        )


def check_template(text: str, info: ValidationInfo) -> str:
    """Refuses unknown placeholders, for validators of options that hold some. Raises `ValueError`."""
    # `secrets` stands before them; when it is wrong itself, that is what gets reported.
    if "secrets" in info.data:
        compile_template(text, secrets=info.data["secrets"])
    return text


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """A TLS context, shared between feeds that ask for the same: one with the system's certificates takes about
    20 ms and half a megabyte to make. Certificates are renewed under a running worker: a file that changed makes
    a new context for the next connection. It reads files, so it belongs into a thread.

    Raises `FeedMisconfigured`, naming the option and the file.
    """
    return _tls_context(
        files, tuple(_file_stamp(files, f.name) for f in fields(files) if f.name.endswith("_file"))
    )


@lru_cache(maxsize=TLS_CONTEXTS_MAX)
def _tls_context(files: TlsFiles, _stamps: tuple[object, ...]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
    except ssl.SSLError:
        raise FeedMisconfigured(f"source.ca_file: {files.ca_file} holds no PEM certificates") from None
    if not files.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if files.cert_file is not None:
        try:
            # Without a password an encrypted key would ask for one on the worker's terminal.
            context.load_cert_chain(files.cert_file, files.key_file, password="")
        except ssl.SSLError:
            raise FeedMisconfigured(
                f"source.cert_file: {files.cert_file} with key {files.key_file or 'in the same file'} is not a "
                "PEM certificate with its unencrypted private key"
            ) from None
    return context


def _file_stamp(files: TlsFiles, option: str) -> tuple[int, int] | None:
    path = getattr(files, option)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
    except OSError as error:
        raise FeedMisconfigured(
            f"source.{option}: {path} cannot be read on this worker: {error.strerror}"
        ) from None
    return status.st_mtime_ns, status.st_size


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
