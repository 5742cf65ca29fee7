"""Has a server do the verbs of a command, with the same arguments and answers as at the control database.

With ``--server URL`` or ``FEEDQ_SERVER`` a command asks the API at that address. The token comes from the
environment or from a file, never from the command line, which everybody on the machine can read. It goes to that
one address: redirects are not followed, and without TLS only to this machine. What the API says is wrong becomes
the same error as of a command at the database.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import msgspec

import feedq
from feedq.core.authorship import given_reason
from feedq.core.json_texts import same_number
from feedq.core.permission import is_loopback
from feedq.errors import FeedqError, InvalidInput, Unauthenticated, Unavailable, error_of
from feedq.verbs import registry

if TYPE_CHECKING:
    import httpx  # imported where it is used: whoever asks the database does without

TIMEOUT_S: Final = 60.0
"""Longer than the API itself takes for an answer, so that it is the one to say that it took too long."""
ANSWER_BYTES_MAX: Final = 64 * 2**20
TOKEN_BYTES_MAX: Final = 1_000
TOKEN: Final = "FEEDQ_TOKEN"  # noqa: S105 -- the name of a variable
TOKEN_FILE: Final = "FEEDQ_TOKEN_FILE"  # noqa: S105


class ApiConnection:
    """Asks one API, over one connection that is kept. Close it."""

    def __init__(self, url: str, token: str | None) -> None:
        import httpx

        self._url = _checked(url)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=self._url + registry.PREFIX, headers=headers, timeout=TIMEOUT_S)

    def close(self) -> None:
        self._client.close()

    def do(self, verb: registry.Verb, arguments: msgspec.Struct, told: registry.Told | None) -> Any:
        """Have the server do a verb, and read its answer as the verb's own dataclass.

        ``told`` hears how far it has come, if somebody wants to know. Raises as the verb does, and `Unavailable`.
        """
        given = msgspec.to_builtins(
            arguments, enc_hook=registry.write_declaration, builtin_types=(msgspec.Raw,)
        )
        path = [
            str(given.pop(part.strip("{}"))) if part.startswith("{") else part
            for part in verb.path.strip("/").split("/")
        ]
        asked: dict[str, Any] = (
            {"content": msgspec.json.encode(given)} if verb.changes else {"params": registry.query_of(given)}
        )
        if verb.is_stream:
            return (msgspec.json.decode(data) for _, data in self.events(verb.method, path, **asked))
        if told is None:
            with self._answered(verb.method, path, {}, **asked) as answer:
                return self.read(_read(answer), verb.answer)
        for kind, data in self.events(verb.method, path, **asked):
            if kind == registry.PROGRESS:
                come = msgspec.json.decode(data, type=registry.Progress)
                told(come.done, come.total)
            elif kind == registry.ANSWER:
                return self.read(data, verb.answer)
        raise Unavailable(f"the server at {self._url} broke off its answer; check what it has done")

    def events(
        self, method: str, path: Sequence[str], **asked: Any
    ) -> Generator[tuple[str, bytes], None, None]:
        """The events of a stream as they come: the kind of each, and its document. Close it.

        Raises the `FeedqError` that the API tells of, and `Unavailable`."""
        with self._answered(method, path, {"Accept": registry.STREAM_TYPE}, **asked) as answer:
            read = bytearray()
            for part in answer.iter_bytes():
                read += part
                while (end := read.find(b"\n\n")) >= 0:
                    event, read = bytes(read[:end]), read[end + 2 :]
                    named = dict(line.partition(b": ")[::2] for line in event.split(b"\n"))
                    if b"event" not in named:  # a sign of life
                        continue
                    kind, data = named[b"event"].decode(), named.get(b"data", b"")
                    if kind == registry.PROBLEM:
                        raise self._error(data, 200)
                    yield kind, data
                _bound(read)

    def read(self, text: bytes, kind: Any) -> Any:
        """An answer as what it is. Raises `Unavailable` when it is something else."""
        try:
            return msgspec.json.Decoder(kind, dec_hook=registry.read_answered, float_hook=same_number).decode(
                text
            )
        except msgspec.ValidationError as error:
            raise self._skewed() from error
        except msgspec.DecodeError:
            raise self._no_api(200) from None

    @contextmanager
    def _answered(
        self, method: str, path: Sequence[str], headers: Mapping[str, str], **asked: Any
    ) -> Iterator[httpx.Response]:
        import httpx

        reason = given_reason()
        said = {"Content-Type": registry.JSON_TYPE, **headers} | (
            {} if reason is None else {"Feedq-Reason": quote(reason)}
        )
        address = "/" + "/".join(quote(part, safe="") for part in path)
        try:
            with self._client.stream(method, address, headers=said, **asked) as answer:
                if not answer.is_success:
                    raise self._error(_read(answer), answer.status_code)
                yield answer
        except httpx.InvalidURL as error:
            raise InvalidInput(f"--server: {error}") from None
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise Unavailable(
                f"no answer from the server at {self._url}: {why}; check that `feedq api` runs there"
            ) from None

    def _error(self, text: bytes, status: int) -> FeedqError:
        try:
            told = msgspec.json.decode(text, type=registry.Problem)
        except msgspec.DecodeError:
            return self._no_api(status)
        error = error_of(told.error, told.detail)
        if isinstance(error, Unauthenticated):
            return Unauthenticated(f"the server at {self._url}: {error}; {TOKEN} or {TOKEN_FILE} gives it")
        if type(error) is FeedqError:  # none that a command knows
            return self._skewed() if status in (404, 405) else Unavailable(str(error))
        return error

    def _skewed(self) -> Unavailable:
        """The error of an answer that is not as it should be."""
        return Unavailable(
            f"the server at {self._url} does not answer as this command (release {feedq.__version__}) "
            "expects: use the release that the server has"
        )

    def _no_api(self, status: int) -> Unavailable:
        return Unavailable(f"{self._url} answers (status {status}), but is not an API of feedq; see --server")


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
        raise InvalidInput(f"--server: contains a login, which others can read; set {TOKEN} instead")
    if parts.scheme == "http" and not is_loopback(host):
        raise InvalidInput(f"--server: http would send the token in clear to {host}; use https")
    return url.rstrip("/")


def _read(answer: httpx.Response) -> bytes:
    read = bytearray()
    for part in answer.iter_bytes():
        read += part
        _bound(read)
    return bytes(read)


def _bound(read: bytearray) -> None:
    if len(read) > ANSWER_BYTES_MAX:
        raise Unavailable(f"the server's answer is larger than {ANSWER_BYTES_MAX} bytes; ask for less")
