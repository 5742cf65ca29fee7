"""Arguments of a job: whether they can be stored as JSON, and hold no passwords.

They are stored with the schedule, copied with each run and shown to whoever may see it. So a value under a name
such as ``password`` is refused, unless it is a reference such as ``${NAME}``. No message repeats a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

SIZE_MAX = 64 * 1024
"""Values and characters of args or kwargs, counted together: each run has a copy of its own."""
DEPTH_MAX = 32
"""Deeper ones are mistakes, and recursion over them must stay cheap."""
PATH_MAX = 200
"""Characters of the path to a value, from where on it is cut: keys may be as long as they like."""
INTEGER_BITS = 64
"""JSON of the control database is written and read with 64-bit integers."""

_SIZE_ALLOWED = f"at most {SIZE_MAX} values and characters are allowed"
_SECRET = re.compile(
    r"(?:.*_)?(?:password|passwd|passphrase|pwd|secret|token|api_?key|access_?key|private_?key|secret_?key"
    r"|nkey_seed|credentials?|authorization|bearer|cookie)"
)
_REFERENCE = re.compile(r"\$\{[^{}]+\}")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Begins at the colon: with the scheme before it, a long text without any would take time by its square.
_URL_PASSWORD = re.compile(r"://[^\s/@:]*:(?P<password>[^\s/@]+)@")


def argument_problems(option: str, arguments: Any) -> Iterator[str]:
    """What the database could not store as JSON, or should not store at all."""
    size = 1
    stack: list[tuple[str, Any, int, bool]] = [(option, arguments, 0, False)]
    while stack:
        where, value, depth, is_secret = stack.pop()
        if isinstance(value, str | Mapping | list | tuple):
            size += len(value)
        if isinstance(value, Mapping):
            size += sum(len(key) for key in value if isinstance(key, str))
        if depth > DEPTH_MAX or size > SIZE_MAX:
            what = (
                f"nested more than {DEPTH_MAX} deep" if depth > DEPTH_MAX else f"too large; {_SIZE_ALLOWED}"
            )
            yield f"{option}: {what}"
            return
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from _key_problems(where, key)
                within = is_secret or (isinstance(key, str) and names_secret(key))
                stack.append((_below(where, key), inner, depth + 1, within))
        elif isinstance(value, list | tuple):
            stack.extend((_below(where, n), inner, depth + 1, is_secret) for n, inner in enumerate(value))
        else:
            yield from _scalar_problems(where, value)
            yield from _secret_problems(where, value, is_secret)


def _below(where: str, key: object) -> str:
    return f"{where}.{key}"[:PATH_MAX]


def names_secret(key: str) -> bool:
    """Whether the name of an argument gives it away as a secret: ``password``, ``db_token``, ``apiKey``."""
    words = _CAMEL.sub("_", key).replace("-", "_").lower()
    return _SECRET.fullmatch(words) is not None


def _key_problems(where: str, key: object) -> Iterator[str]:
    if not isinstance(key, str):
        yield f"{where}: the key {key!r} must be a string; quote it"
    else:
        yield from _text_problems(_below(where, key), key)


def _scalar_problems(where: str, value: Any) -> Iterator[str]:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        yield from _text_problems(where, value)
    elif isinstance(value, int):
        if value.bit_length() >= INTEGER_BITS:
            yield f"{where}: is an integer beyond {INTEGER_BITS} bits; write it as a string"
    elif isinstance(value, float):
        if not isfinite(value):
            yield f"{where}: must be a finite number"
    else:
        yield f"{where}: {type(value).__name__} is not a JSON value; quote it"


def _text_problems(where: str, text: str) -> Iterator[str]:
    if "\0" in text:
        yield f"{where!a}: must not contain the NUL character; PostgreSQL cannot store it"
    try:
        text.encode()
    except UnicodeEncodeError:
        yield f"{where!a}: contains half of a surrogate pair, which is no Unicode text"


def _secret_problems(where: str, value: Any, is_secret: bool) -> Iterator[str]:
    if value is None or value == "" or isinstance(value, bool):
        return
    if is_secret and not (isinstance(value, str) and _REFERENCE.fullmatch(value)):
        yield (
            f"{where}: would be stored and shown as it stands; write a reference such as ${{NAME}} instead, "
            "or have the job read it from its environment"
        )
    elif isinstance(value, str):
        passwords = [found["password"] for found in _URL_PASSWORD.finditer(value)]
        if not all(_REFERENCE.fullmatch(password) for password in passwords):
            yield (
                f"{where}: holds a password in a URL; write a reference such as ${{NAME}} in its place, "
                "or have the job read it from its environment"
            )
