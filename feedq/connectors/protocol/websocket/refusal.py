"""Why a server did not answer a handshake as a WebSocket server does, and who can mend it.

Refused credentials wait for an edit, and so does a server that has moved for good. Anything else may be over by
the next try: a server that is being deployed says 404 or 502, one that is busy 429.

The body of an answer is never shown: it may repeat what was asked, and that may hold a secret. What is shown of
the rest is masked before it is cut: half a secret would not be recognised.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from urllib.parse import urlsplit

from websockets.exceptions import InvalidMessage, InvalidStatus
from websockets.http11 import Response

from feedq.connectors.protocol.http.retry_after import retry_after_s
from feedq.errors import FeedMisconfigured, FeedqError, SourceBusy, SourceUnavailable

Mask = Callable[[str], str]
"""Replaces secrets."""

SHOWN_CHARACTERS = 200
_CREDENTIALS = (401, 403, 407)
_MOVED_FOR_GOOD = (301, 308)


def explain_refusal(error: Exception, where: object, *, mask: Mask, now: datetime) -> FeedqError:
    """The error of a handshake as one of ours."""
    match error:
        case InvalidStatus():
            return _explain_status(error.response, where, mask=mask, now=now)
        case InvalidMessage() if isinstance(error.__cause__, EOFError):
            return SourceUnavailable(f"{where}: closed by the peer before it had answered the handshake")
        case InvalidMessage():
            return SourceUnavailable(
                f"{where}: its answer is not HTTP/1.1; does it speak WebSocket on that port, and with TLS or not?"
            )
    return SourceUnavailable(f"{where}: its answer is no WebSocket handshake: {show(str(error), mask=mask)}")


def show(said: str, *, mask: Mask) -> str:
    """What a server said, for a message: one line, and not all of it."""
    line = " ".join("".join(c if c.isprintable() else " " for c in mask(said)).split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"


def _explain_status(response: Response, where: object, *, mask: Mask, now: datetime) -> FeedqError:
    code = response.status_code
    said = f"{where}: the server answered {_name(code)}"
    if code in _CREDENTIALS:
        return FeedMisconfigured(f"{said}; check source.headers, source.url and source.secrets")
    if 300 <= code < 400:
        return _explain_redirect(response, where, mask=mask)
    if code < 300:
        return SourceUnavailable(f"{said} and is no WebSocket; check the path in source.url")
    after = ", ".join(response.headers.get_all("Retry-After"))
    if not after:
        return SourceUnavailable(said)
    said += f", and asks to wait: Retry-After {show(after, mask=mask)}"
    retry_in_s = retry_after_s(after, now=now)
    return SourceUnavailable(said) if retry_in_s is None else SourceBusy(said, retry_in_s=retry_in_s)


def _explain_redirect(response: Response, where: object, *, mask: Mask) -> FeedqError:
    kind = FeedMisconfigured if response.status_code in _MOVED_FOR_GOOD else SourceUnavailable
    return kind(
        f"{where}: the server redirects{_there(response, mask=mask)} ({response.status_code}), "
        "which is not followed; set source.url to where it leads"
    )


def _there(response: Response, *, mask: Mask) -> str:
    # Host and port only: the rest of the new URL may repeat what is secret in ours.
    try:
        parts = urlsplit(response.headers.get("Location", ""))
        host = parts.netloc.rpartition("@")[2]
    except (ValueError, LookupError):
        return ""
    return f" to {show(f'{parts.scheme}://{host}', mask=mask)}" if host else ""


def _name(code: int) -> str:
    try:
        return f"{code} {HTTPStatus(code).phrase}"
    except ValueError:  # one that the standard does not know
        return str(code)
