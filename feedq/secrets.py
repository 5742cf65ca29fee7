"""Secrets: references that are stored, values that exist only on the worker, and their masking.

A feed names its secrets as references, ``${env:NAME}`` or ``${file:/path}``; the value is read on the
worker when the feed starts, goes to the wire, and appears in no table, message or log. A reference that
cannot be resolved is named in the error, its value never is.

Whoever may declare feeds may have any variable and any file that the worker can read sent to any host, unless
``FEEDQ_SECRETS_ALLOW`` says which ones the feeds of each tenant may use.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

import msgspec

from feedq.core.permission import DEFAULT, Permissions
from feedq.errors import FeedMisconfigured

SECRET_BYTES_MAX = 64 * 1024
"""Bounds what a mistaken reference (a log, a device) can pull into memory and onto the wire."""
MASK = "***"
LINE_CHARACTERS_MIN = 8
"""Of a line of a secret that is masked by itself: shorter ones are brackets and the like, or words."""

_REFERENCE = re.compile(r"\$\{(?:env:(?P<env>[A-Za-z_][A-Za-z0-9_]*)|file:(?P<file>/[^}\0]+))\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENCODED = re.compile(r"%[0-9A-F]{2}")


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a secret is to be had: exactly one of the two is set."""

    env: str | None = None
    file: str | None = None

    @property
    def plain(self) -> str:
        """As permissions name it: ``env:NAME`` or ``file:/path``."""
        return f"env:{self.env}" if self.env is not None else f"file:{self.file}"

    def __str__(self) -> str:
        return f"${{{self.plain}}}"


def parse_reference(text: str) -> Reference:
    """Raises `ValueError`, without ``text``: what is not a reference may well be the secret itself."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise ValueError(
            "is not a reference: write ${env:NAME} or ${file:/absolute/path}; the secret itself is never stored"
        )
    return Reference(env=match["env"], file=match["file"])


def check_secret_name(name: str) -> None:
    """Raises `ValueError` unless ``name`` can stand in braces in a template."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a secret: use letters, digits and underscores")


def secret_files(secrets: Mapping[str, str]) -> list[str]:
    """The files that references name."""
    matches = map(_REFERENCE.fullmatch, secrets.values())
    return [match["file"] for match in matches if match is not None and match["file"]]


def resolve_secrets(
    secrets: Mapping[str, str], *, tenant: str = "", permissions: Permissions = DEFAULT
) -> dict[str, str]:
    """Names to values, from names to references. Reads files, so it may block.

    Raises:
        FeedMisconfigured: a variable or file is missing, empty, too large, not text, or not for feeds of this
            ``tenant``; names the secret and its reference.
    """
    return {name: _resolve(name, text, tenant, permissions) for name, text in secrets.items()}


def _resolve(name: str, text: str, tenant: str, permissions: Permissions) -> str:
    try:
        reference = parse_reference(text)
    except ValueError as error:
        raise FeedMisconfigured(f"secret {name!r} {error}") from None
    # Before it is looked for: whoever may not use it shall not learn either whether it is there.
    if not permissions.allows_secret(reference.plain, tenant=tenant):
        whose = f"tenant {tenant!r}" if tenant else "no tenant"
        raise FeedMisconfigured(
            f"secret {name!r}: feeds of {whose} may not use {reference}; FEEDQ_SECRETS_ALLOW, on the workers, "
            "says which secrets they may"
        )
    if reference.env is not None:
        value = os.environ.get(reference.env)
        if value is None:
            raise FeedMisconfigured(f"secret {name!r}: {reference} is not set in the worker's environment")
    else:
        assert reference.file is not None
        value = _read_file(name, reference, reference.file)
    if not value:
        raise FeedMisconfigured(f"secret {name!r}: {reference} is empty")
    return value


def _read_file(name: str, reference: Reference, path: str) -> str:
    where = f"secret {name!r}: {reference}"
    try:
        # Without O_NONBLOCK a path that is a pipe would hold the worker until somebody writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FeedMisconfigured(f"{where} is not a regular file")
            content = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise FeedMisconfigured(f"{where} cannot be read on this worker: {error.strerror}") from None
    if len(content) > SECRET_BYTES_MAX:
        raise FeedMisconfigured(f"{where} is larger than {SECRET_BYTES_MAX} bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise FeedMisconfigured(f"{where} is not UTF-8 text") from None
    # Editors and `echo` end a file with a newline that is no part of the secret; only one is taken off.
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


class Masker:
    """Replaces known secret values in texts by asterisks, also where they were quoted for JSON, Python or a
    URL on their way into a message. Made once a feed from the resolved values."""

    def __init__(self, values: Iterable[str]) -> None:
        spellings = {spelling for value in values for spelling in _spellings(value) if spelling}
        # An error often quotes what it was given, which was quoted itself: the JSON of a login, say.
        spellings |= {escaped for spelling in spellings for escaped in _escaped(spelling)}
        # Longest first: of two secrets that begin alike, the longer must not leave its end behind.
        longest_first = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def mask(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def __repr__(self) -> str:
        return "Masker(…)"


def _spellings(value: str) -> Iterable[str]:
    yield value
    yield value.strip()
    # Messages are brought to one line; and of a secret of several lines, such as a key, only one may be quoted.
    yield " ".join(value.split())
    yield from (line for line in map(str.strip, value.splitlines()) if len(line) >= LINE_CHARACTERS_MIN)
    for percent in (
        quote(value, safe="", errors="surrogateescape"),
        quote_plus(value, errors="surrogateescape"),
    ):
        yield percent
        yield _ENCODED.sub(lambda match: match[0].lower(), percent)
    yield json.dumps(value)[1:-1]
    try:
        yield msgspec.json.encode(value).decode()[1:-1]
    except UnicodeEncodeError:  # not Unicode, so never part of JSON
        return


def _escaped(text: str) -> Iterable[str]:
    """As Python quotes it."""
    encoded = text.encode("utf-8", "surrogateescape")
    yield repr(text)[1:-1]
    yield repr(encoded)[2:-1]
    # With both kinds of quotes in what is quoted, the one that it is quoted with is escaped.
    yield repr(f"'\"{text}")[4:-1]
    yield repr(b"'\"" + encoded)[5:-1]
