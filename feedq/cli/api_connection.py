"""The API that a command asks in the place of the control database: ``--server URL`` or ``FEEDQ_SERVER``.

The token comes from the environment or from a file, never from the command line, which everybody on the machine
can read. It goes to that one address: redirects are not followed, and without TLS only to this machine. What the
API says is wrong becomes the same error as of a command at the database.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from feedq import errors
from feedq.core.authorship import given_reason
from feedq.core.values import is_loopback
from feedq.errors import FeedqError, InvalidInput, Unauthenticated, Unavailable

if TYPE_CHECKING:
    import httpx

TIMEOUT_S: Final = 60.0
"""Longer than the API itself takes for an answer, so that it is the one to say that it took too long."""
ANSWER_BYTES_MAX: Final = 64 * 2**20
DATA: Final = "data: "
"""How a line of a stream of events begins that has a document."""
TOKEN_BYTES_MAX: Final = 1_000
TOKEN: Final = "FEEDQ_TOKEN"  # noqa: S105 -- the name of a variable
TOKEN_FILE: Final = "FEEDQ_TOKEN_FILE"  # noqa: S105

# httpx is imported where it is used: whoever asks the database does without.


class ApiConnection:
    """Asks one API, over one connection that is kept. Close it."""

    def __init__(self, url: str, token: str | None) -> None:
        import httpx

        self._url = _checked(url)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=f"{self._url}/api/v1", headers=headers, timeout=TIMEOUT_S)

    def close(self) -> None:
        self._client.close()

    def get(self, *path: str, **arguments: Any) -> Any:
        return self.ask("GET", *path, arguments=arguments)

    def ask(
        self,
        method: str,
        *path: str,
        arguments: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The document of the answer. Raises the `FeedqError` that the API tells of, and `Unavailable`."""
        given = {name: value for name, value in (arguments or {}).items() if value not in (None, [], False)}
        with self._answered(method, path, params=given, json=body, headers=headers) as answer:
            return self._document(answer, _read(answer))

    def events(self, *path: str, **arguments: Any) -> Generator[dict[str, Any], None, None]:
        """The documents of a stream of events, as they come. Raises as `ask`. Close it."""
        with self._answered("GET", path, params=arguments) as answer:
            if not answer.is_success:
                self._document(answer, _read(answer))
            for line in answer.iter_lines():
                if line.startswith(DATA):
                    yield json.loads(line.removeprefix(DATA))

    @contextmanager
    def _answered(
        self, method: str, path: Sequence[str], *, headers: Mapping[str, str] | None = None, **sent: Any
    ) -> Iterator[httpx.Response]:
        import httpx

        reason = given_reason()
        said = dict(headers or {}) | ({} if reason is None else {"Feedq-Reason": quote(reason)})
        address = "/" + "/".join(quote(part, safe="") for part in path)
        try:
            with self._client.stream(method, address, headers=said, **sent) as answer:
                yield answer
        except httpx.InvalidURL as error:
            raise InvalidInput(f"--server: {error}") from None
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise Unavailable(
                f"no answer from the server at {self._url}: {why}; see that `feedq api` runs there"
            ) from None

    def skewed(self) -> Unavailable:
        """The error of an answer that lacks what it should have."""
        import feedq

        return Unavailable(
            f"the server at {self._url} answers otherwise than this command (release {feedq.__version__}) "
            "expects: use the release of the server"
        )

    def _document(self, answer: httpx.Response, text: bytes) -> Any:
        try:
            document = json.loads(text)
        except ValueError:
            raise self._no_api(answer) from None
        if answer.is_success:
            return document
        if not isinstance(document, dict) or not isinstance(document.get("detail"), str):
            raise self._no_api(answer)
        error = error_of(document)
        if isinstance(error, Unauthenticated):
            raise Unauthenticated(f"the server at {self._url}: {error}; {TOKEN} or {TOKEN_FILE} gives it")
        if type(error) is FeedqError:  # none that a command knows
            raise self.skewed() if answer.status_code in (404, 405) else Unavailable(str(error))
        raise error

    def _no_api(self, answer: httpx.Response) -> Unavailable:
        return Unavailable(
            f"what answers at {self._url} (status {answer.status_code}) is no API of feedq; see --server"
        )


def error_of(problem: Mapping[str, Any]) -> FeedqError:
    """The error that the API tells of; the root of all where it is none of feedq's."""
    kind = getattr(errors, str(problem.get("error")), None)
    if isinstance(kind, type) and issubclass(kind, FeedqError):
        return kind(problem["detail"])
    return FeedqError(problem["detail"])


def token_of(environment: Mapping[str, str] = os.environ) -> str | None:
    """The token that the environment gives, or the file that it names. Raises `InvalidInput`."""
    if given := environment.get(TOKEN, "").strip():
        return given
    file = environment.get(TOKEN_FILE)
    if not file:
        return None
    try:
        with Path(file).open("rb") as opened:
            found = opened.read(TOKEN_BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{TOKEN_FILE}: no token can be read from {file}: {error}") from None
    return found or None


def _checked(url: str) -> str:
    """The address without a slash at its end. Raises `InvalidInput`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise InvalidInput(f"--server: {error}") from None
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.query or parts.fragment:
        raise InvalidInput("--server: write it as https://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(f"--server: holds a login, which others can read; {TOKEN} gives a token instead")
    if parts.scheme == "http" and not is_loopback(host):
        raise InvalidInput(f"--server: http would send the token in clear to {host}; use https")
    return url.rstrip("/")


def _read(answer: httpx.Response) -> bytes:
    read = bytearray()
    for part in answer.iter_bytes():
        read += part
        if len(read) > ANSWER_BYTES_MAX:
            raise Unavailable(f"the server's answer is larger than {ANSWER_BYTES_MAX} bytes; ask for less")
    return bytes(read)
