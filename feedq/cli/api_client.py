"""The API that a command asks in the place of the control database: ``--server URL`` or ``FEEDQ_SERVER``.

The token comes from the environment or from a file, never from the command line, which everybody on the machine
can read. It goes to that one address: redirects are not followed, and without TLS only to this machine. What the
API says is wrong becomes the same error as of a command at the database. Its
documents are read as the values that the database would have given.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints
from urllib.parse import quote, urlsplit
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from feedq import errors
from feedq.core.authorship import given_reason
from feedq.core.model import Identity, Load, Worker, WorkerView
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

    def sent(
        self, method: str, path: Sequence[str], body: Mapping[str, Any], params: Mapping[str, Any]
    ) -> bytes:
        """The text of an answer that is no error. Raises as `ask`."""
        with self._answered(method, path, params=params, json=body or None) as answer:
            text = _read(answer)
            if not answer.is_success:
                self._document(answer, text)
            return text

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


ROWS_AT_ONCE: Final = 500
"""What the API has on a page at most."""
ONE_BY_ONE_MAX: Final = 20
"""Feeds that are asked for one by one; more are looked for in the list of all."""
NEVER: Final = datetime.min.replace(tzinfo=UTC)
"""Stands for a moment that the API does not tell."""
NOBODY: Final = Identity(UUID(int=0), UUID(int=0))
"""Stands for the identity of a feed, which the API does not tell."""
T = TypeVar("T")


class ApiPart:
    """Base of what asks an API for one kind of thing."""

    def __init__(self, api: ApiConnection) -> None:
        self._api = api

    def _read(self, reader: Callable[[Mapping[str, Any]], T], row: Mapping[str, Any]) -> T:
        """Raises `Unavailable` when the document lacks something."""
        try:
            return reader(row)
        except (KeyError, TypeError, ValidationError) as error:
            raise self._api.skewed() from error

    def _read_all(
        self, reader: Callable[[Mapping[str, Any]], T], rows: Iterable[Mapping[str, Any]]
    ) -> list[T]:
        return [self._read(reader, row) for row in rows]

    def _pages(
        self, key: str, *, under: Sequence[str] = (), most: int | None = None, **asked: Any
    ) -> Iterator[Mapping[str, Any]]:
        """The pages of a list, up to so many rows."""
        count, cursor = 0, None
        while True:
            left = ROWS_AT_ONCE if most is None else min(ROWS_AT_ONCE, most - count)
            page = self._api.get(*under, key, limit=left, cursor=cursor, **asked)
            yield page
            count, cursor = count + len(page[key]), page["next"]
            if cursor is None or count == most:
                return

    def _rows(self, key: str, **asked: Any) -> list[Mapping[str, Any]]:
        """The rows of all pages of a list, or the first so many."""
        return [row for page in self._pages(key, **asked) for row in page[key]]


def value_of(kind: type[T], row: Mapping[str, Any], **given: Any) -> T:
    """The value whose columns a document has under their own names, but for those that are ``given``."""
    of: Any = kind
    shared = [one.name for one in fields(of) if one.name in row and one.name not in given]
    return kind(**{name: _adapter(of, name).validate_python(row[name]) for name in shared}, **given)


def reader_of(kind: type[T], **given: Any) -> Callable[[Mapping[str, Any]], T]:
    return partial(value_of, kind, **given)


@cache
def _adapter(kind: Any, name: str) -> TypeAdapter[Any]:
    (declared,) = (one.type for one in fields(kind) if one.name == name)
    # What may be any JSON is taken as it is: its type is endless.
    return TypeAdapter(Any if declared == "JSON" else get_type_hints(kind)[name])


def timed(row: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """A row with its times as times."""
    return {**row, **{key: row[key] and datetime.fromisoformat(row[key]) for key in keys}}


def worker_view(row: Mapping[str, Any]) -> WorkerView:
    load = value_of(Load, row, feeds=row["feeds_reported"])
    worker = value_of(Worker, row, load=load, lock_key=0)
    return WorkerView(worker, row["feeds"], row["heartbeat_age_s"], load=row["load"])
