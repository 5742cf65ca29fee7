"""The ``tcp`` connector: records over a TCP or TLS connection that feedq opens.

Connect, send ``hello``, then cut what comes into records; each batch holds everything that has arrived
since the last one was taken. A source resumes if ``hello`` tells it the cursor, and ``cursor`` says where in
a record it is; then nothing is lost between two connections. Without that, what the source sends while
nobody is connected is gone, and feedq cannot know.

An incomplete record at the end of a connection is discarded: it lies after the cursor, so a source that
resumes sends it again, whole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from feedq.connectors.base import ConnectorOptions, Context
from feedq.connectors.connection import ConnectionOptions, open_connection
from feedq.connectors.cursor import CursorReader, show_cursor
from feedq.connectors.endpoint import parse_endpoint
from feedq.connectors.framing import Framer, make_framer
from feedq.connectors.pointer import parse_pointer
from feedq.connectors.template import compile_template, unescape, wire_values
from feedq.connectors.tls import TlsFiles
from feedq.errors import FeedMisconfigured, SourceUnavailable
from feedq.model import JSON, Batch

TIMEOUT_S_MAX = 86_400
RECORD_BYTES_MAX = 64 * 2**20
"""Beyond it PostgreSQL refuses a jsonb value anyway, and one record could fill a worker."""


class TcpOptions(ConnectorOptions):
    """Options of a feed with ``connector: tcp``."""

    url: str = Field(
        description="Where the source listens: `tcp://host:port`, or `tls://host:port`; "
        "an IPv6 address in brackets."
    )
    hello: str = Field(
        default="",
        description="Sent once connected. `{name}` and `{cursor}` become JSON texts (the cursor is `null` "
        r"at first), `{secret}` the secret of that name as it is. Escapes: `\n \r \t \0 \\ \xNN`.",
    )
    cursor: str | None = Field(
        default=None,
        description="JSON pointer to what to resume after in each record, such as `/seq`; "
        "needs `format: json`.",
    )
    framing: Literal["lines", "delimiter"] = Field(
        default="lines",
        description="How records end: `lines` with LF or CRLF, or with the `delimiter`. "
        "Empty records are keep-alives and are skipped.",
    )
    delimiter: str | None = Field(
        default=None,
        validate_default=True,
        description="Ends a record with `framing: delimiter`; any bytes, with the escapes of `hello`.",
    )
    max_record_bytes: int = Field(
        default=2**20,
        ge=1,
        le=RECORD_BYTES_MAX,
        description="A larger record fails the feed, with everything before it landed, until this is raised.",
    )
    connect_timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=TIMEOUT_S_MAX,
        description="Longest time for name resolution, connection and TLS handshake together.",
    )
    idle_timeout_s: float = Field(
        default=60.0,
        ge=0,
        le=TIMEOUT_S_MAX,
        description="A connection that sends nothing, not even an empty record, for this long is stalled "
        "and made anew; 0 is never.",
    )
    buffer_bytes: int = Field(
        default=512 * 1024,
        ge=1,
        le=64 * 2**20,
        description="Received bytes that wait to be taken before reading pauses and the source has to wait.",
    )
    keepalive: bool = Field(
        default=True, description="TCP keepalive, which notices within a minute a peer that vanished."
    )
    verify: bool = Field(default=True, description="`tls://`: check the source's certificate and its name.")
    ca_file: str | None = Field(
        default=None,
        description="`tls://`: PEM file on the worker with certificates to trust instead of the system's.",
    )
    cert_file: str | None = Field(
        default=None, description="`tls://`: PEM file with the certificate that the worker shows."
    )
    key_file: str | None = Field(
        default=None, description="`tls://`: PEM file with its private key, unless `cert_file` holds both."
    )
    server_name: str | None = Field(
        default=None, description="`tls://`: name that the certificate must bear, if it is not the host."
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parse_endpoint(url)
        return url

    @field_validator("hello")
    @classmethod
    def _check_hello(cls, hello: str, info: ValidationInfo) -> str:
        if "secrets" in info.data:
            compile_template(hello, secrets=info.data["secrets"])
        return hello

    @field_validator("cursor")
    @classmethod
    def _check_cursor(cls, cursor: str | None, info: ValidationInfo) -> str | None:
        if cursor is not None:
            parse_pointer(cursor)
            if info.data.get("format", "json") != "json":
                raise ValueError(f"needs source.format json, not {info.data['format']}")
        return cursor

    @field_validator("delimiter")
    @classmethod
    def _check_delimiter(cls, delimiter: str | None, info: ValidationInfo) -> str | None:
        wanted = info.data.get("framing") == "delimiter"
        if wanted and not delimiter:
            raise ValueError("must not be empty with source.framing delimiter")
        if delimiter is not None:
            if not wanted:
                raise ValueError("needs source.framing delimiter")
            unescape(delimiter)
        return delimiter

    @field_validator("verify", "ca_file", "cert_file", "key_file", "server_name")
    @classmethod
    def _check_tls(cls, value: bool | str | None, info: ValidationInfo) -> bool | str | None:
        url = info.data.get("url")
        is_set = value is not None and value is not True
        if is_set and url is not None and not parse_endpoint(url).tls:
            raise ValueError("needs a tls:// source.url")
        if is_set and info.field_name == "key_file" and info.data.get("cert_file") is None:
            raise ValueError("needs source.cert_file")
        return value

    def connection_options(self) -> ConnectionOptions:
        return ConnectionOptions(
            endpoint=parse_endpoint(self.url),
            connect_timeout_s=self.connect_timeout_s,
            idle_timeout_s=self.idle_timeout_s,
            buffer_bytes=self.buffer_bytes,
            keepalive=self.keepalive,
            tls_files=TlsFiles(
                ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file, verify=self.verify
            ),
            server_name=self.server_name,
        )

    def framer(self) -> Framer:
        delimiter = None if self.delimiter is None else unescape(self.delimiter)
        return make_framer(delimiter, max_record_bytes=self.max_record_bytes)


class TcpConnector:
    """One connection attempt of one feed."""

    Options: ClassVar[type[ConnectorOptions]] = TcpOptions

    def __init__(self, options: TcpOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._connection_options = options.connection_options()
        self._endpoint = self._connection_options.endpoint

    async def stream(self, cursor: JSON) -> AsyncGenerator[Batch, None]:
        """Batches after ``cursor``, until the connection ends: it never ends without an error.

        Raises:
            SourceUnavailable: not reached, broken off, or closed by the peer.
            SourceSilent: no byte for the idle timeout.
            FeedMisconfigured: a record over the limit, a cursor that cannot be kept, a wrong TLS file.
        """
        framer = self._options.framer()
        reader = CursorReader(self._options.cursor) if self._options.cursor is not None else None
        connection = await open_connection(self._connection_options, self._context.guard)
        try:
            connection.send(self._hello(cursor))
            self._context.on_connected()
            heard = False
            while data := await connection.receive():
                heard = True
                framed = framer.push(data)
                if framed:
                    if reader is not None:
                        cursor = reader.after(framed, cursor)
                    yield framed.batch(cursor=cursor, received_at=self._context.clock.now())
                if framed.oversize:
                    raise self._oversize(cursor)
        finally:
            connection.close()
        raise self._closed(discarded=framer.pending, heard=heard)

    def _closed(self, *, discarded: int, heard: bool) -> SourceUnavailable:
        if discarded:
            when = f" in the middle of a record ({discarded} bytes)"
        else:
            when = "" if heard else " before it sent anything"
        return SourceUnavailable(f"{self._endpoint}: closed by the peer{when}")

    def _oversize(self, cursor: JSON) -> FeedMisconfigured:
        return FeedMisconfigured(
            f"{self._endpoint}: record of more than {self._options.max_record_bytes} bytes after cursor "
            f"{show_cursor(cursor)}; raise source.max_record_bytes, or check source.framing"
        )

    def _hello(self, cursor: JSON) -> bytes:
        template = compile_template(self._options.hello, secrets=self._context.secrets)
        return template.render(
            wire_values(feed=self._context.feed, cursor=cursor, secrets=self._context.secrets)
        )
