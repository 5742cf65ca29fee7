"""One connection to a NATS server: nats-py's client over a connection that we dialed.

The library is told not to reconnect: what a connection was is gone with it, and the runner makes the next one,
from the cursor. Whatever ends the connection goes to `NatsLink.inbox` as its failure, a refused permission too, of
which the library only tells a callback while whoever asked waits in vain.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg
from nats.errors import Error, SlowConsumerError
from nkeys import NkeysError, from_seed

from feedq.connectors.protocol.nats.nats_transport import DialedTransport
from feedq.connectors.records.inbox import Inbox
from feedq.connectors.wire.dialing import explain
from feedq.connectors.wire.streams import Streams
from feedq.errors import FeedMisconfigured, FeedqError, SourceUnavailable

CLOSE_S = 0.5
"""How long the last acknowledgements may take to leave."""
_SAID_CHARACTERS_MAX = 300
PING_INTERVAL_S = 3600
"""The library's own pings: the heartbeats of a pull notice sooner."""

_CREDENTIALS = re.compile(
    r"BEGIN NATS USER JWT-+\n\S+\n-+END NATS USER JWT.*BEGIN USER NKEY SEED-+\n(?P<seed>\S+)\n", re.DOTALL
)

Result = TypeVar("Result")

# Whatever it has to tell about a connection goes to whoever reads; its log would have tracebacks beside.
logging.getLogger("nats.aio.client").addFilter(lambda _: False)


@dataclass(frozen=True, slots=True)
class NatsLogin:
    """What a client says of itself when it connects."""

    name: str
    inbox_prefix: str
    username: str | None = None
    password: str | None = None
    token: str | None = None
    nkey_seed: str | None = None
    credentials: str | None = None
    """The content of a credentials file."""


class NatsLink:
    """A connection."""

    def __init__(self, streams: Streams, *, where: object, buffer_bytes: int, payload_bytes_max: int) -> None:
        self.client = Client()
        self.inbox: Inbox[Msg] = Inbox(bytes_max=buffer_bytes)
        self._streams = streams
        self._where = where
        self._payload_bytes_max = payload_bytes_max
        self._transport: DialedTransport | None = None
        self._asked = False
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def log_in(
        self,
        login: NatsLogin,
        *,
        tls: ssl.SSLContext | None,
        tls_first: bool,
        server_name: str,
        timeout_s: float,
    ) -> None:
        """Raises `SourceUnavailable`, or `FeedMisconfigured` for refused credentials."""
        self._check_keys(login)
        self._asked = True
        # The client has no parameter for it, and takes one that is there already, as after a reconnect.
        self._transport = DialedTransport(
            self._streams,
            where=self._where,
            wants_tls=tls is not None,
            payload_bytes_max=self._payload_bytes_max,
            fail=self.fail,
        )
        self.client._transport = self._transport
        try:
            await self.client.connect(
                "nats://source",  # only the library's: we are connected
                name=login.name,
                inbox_prefix=login.inbox_prefix,
                allow_reconnect=False,
                connect_timeout=timeout_s,  # type: ignore[arg-type] # any number will do
                ping_interval=PING_INTERVAL_S,
                tls=tls,
                tls_hostname=server_name,
                tls_handshake_first=tls_first,
                error_cb=self._on_error,
                closed_cb=self._on_closed,
                user=login.username,
                password=login.password,
                token=login.token,
                nkeys_seed_str=login.nkey_seed,
                user_credentials=None if login.credentials is None else RawCredentials(login.credentials),
            )
        except Error as error:
            raise self._refused(error) from error
        if not self.client.is_connected:
            raise SourceUnavailable(f"{self._where}: closed by the server before it answered")
        # The library's reading may end by an error of its own, of which it only tells the log.
        assert self.client._reading_task is not None
        self.client._reading_task.add_done_callback(self._reading_ended)

    def _reading_ended(self, reading: asyncio.Task[None]) -> None:
        if not self.client.is_closed and not reading.cancelled():
            self.fail(SourceUnavailable(f"{self._where}: what the server sent cannot be understood"))

    def expect_records(self, sid: int) -> None:
        """Messages of this subscription are records."""
        assert self._transport is not None
        self._transport.gate.records_sid = b"%d" % sid

    def size_of(self, message: Msg) -> int:
        """Of its payload, as the server said it; a message that is too large is cut."""
        gate = None if self._transport is None else self._transport.gate
        is_cut = (
            gate is not None and gate.left_out is not None and len(message.data) > self._payload_bytes_max
        )
        return (
            gate.left_out if gate is not None and gate.left_out is not None and is_cut else len(message.data)
        )

    def _check_keys(self, login: NatsLogin) -> None:
        """The library raises whatever comes, at different times, and perhaps with what it could not read."""
        seed = login.nkey_seed
        if login.credentials is not None:
            found = _CREDENTIALS.search(login.credentials)
            if found is None:
                raise FeedMisconfigured(
                    f"{self._where}: source.credentials is no content of a credentials file, "
                    "which has a user's JWT and then its seed"
                )
            seed = found["seed"]
        if seed is None:
            return
        try:
            from_seed(bytearray(seed.strip().encode()))
        except (NkeysError, ValueError):
            raise FeedMisconfigured(
                f"{self._where}: the seed in source.nkey_seed or source.credentials is none"
            ) from None

    async def unless_failed(self, doing: Coroutine[Any, Any, Result]) -> Result:
        """The result, unless the connection fails first. Raises what it fails with."""
        task = asyncio.ensure_future(doing)
        try:
            waited: set[asyncio.Future[Any]] = {task, self._failed}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self.inbox.failure is not None:
                raise self.inbox.failure
            return task.result()
        finally:
            if not task.done():
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # beside the connection's own, it says nothing more

    def fail(self, failure: FeedqError) -> None:
        """The connection is of no more use."""
        self.inbox.fail(failure)
        if not self._failed.done():
            self._failed.set_result(None)

    async def close(self) -> None:
        """Cut it, with what is to be sent sent if that is at once possible."""
        self.fail(SourceUnavailable(f"{self._where}: closed"))
        try:
            # The client cannot be closed before it was told to connect.
            if self._asked:
                with suppress(TimeoutError, OSError, Error):
                    async with asyncio.timeout(CLOSE_S):
                        await self.client.close()
        finally:
            self._streams.close()

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            # It has dropped a message: go back to the cursor and ask for it again.
            self.fail(SourceUnavailable(f"{self._where}: more was received than asked for"))
        elif "permissions violation" in str(error).lower():
            said = _said(error)
            self.fail(FeedMisconfigured(f"{self._where}: {said}; the user needs this permission"))

    async def _on_closed(self) -> None:
        error = self.client.last_error
        if isinstance(error, OSError):
            self.fail(explain(error, self._where))
        else:
            said = "" if error is None else f": {_said(error)}"
            self.fail(SourceUnavailable(f"{self._where}: closed by the server{said}"))

    def _refused(self, error: Error) -> SourceUnavailable | FeedMisconfigured:
        said = _said(error)
        if "authorization" in said.lower() or "authentication" in said.lower():
            return FeedMisconfigured(
                f"{self._where}: credentials refused ({said}); check source.username and source.password, "
                "source.token, source.nkey_seed or source.credentials"
            )
        return SourceUnavailable(f"{self._where}: {said}")


def _said(error: Exception) -> str:
    """The words of the server, which the library turns into small letters, or its own."""
    return str(error).removeprefix("nats: ").strip("' ")[:_SAID_CHARACTERS_MAX]
