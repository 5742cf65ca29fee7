"""Arguments of a job that are secrets, by their names.

They are stored with the schedule, copied with each run and shown to whoever may see it. So a value under a name
such as ``password`` is refused, unless it is a reference such as ``${NAME}``. No message repeats a value.
"""

from __future__ import annotations

import re
from typing import Any

_SECRET = re.compile(
    r"(?:.*_)?(?:password|passwd|passphrase|pwd|secret|token|api_?key|access_?key|private_?key|secret_?key"
    r"|nkey_seed|credentials?|authorization|bearer|cookie)"
)
_NAME_CHARS = 64
"""Only the end of a name matters, and a name may be as long as all arguments together."""
_REFERENCE = re.compile(r"\$\{[^{}]+\}")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Begins at the colon: with the scheme before it, a long text without any would take time by its square.
_URL_PASSWORD = re.compile(r"://[^\s/@:]*:(?P<password>[^\s/@]+)@")


def names_secret(key: str) -> bool:
    """Return whether the name of an argument gives it away as a secret: ``password``, ``db_token``,
    ``apiKey``."""
    words = _CAMEL.sub("_", key[-_NAME_CHARS:]).replace("-", "_").lower()
    return _SECRET.fullmatch(words) is not None


def is_secret(key: str, value: Any) -> bool:
    """Whether a value is a secret that its name gives away: no reference, and not empty."""
    is_reference = isinstance(value, str) and _REFERENCE.fullmatch(value) is not None
    return not (is_reference or value in (None, "") or isinstance(value, bool)) and names_secret(key)


def secret_problem(keys: tuple[Any, ...], value: Any) -> str | None:
    """Return what is wrong with a value under these keys, if it must not be stored as it stands."""
    if any(isinstance(key, str) and is_secret(key, value) for key in keys):
        return (
            "would be stored and shown as it stands; write a reference such as ${NAME} instead, "
            "or have the job read it from its environment"
        )
    if isinstance(value, str):
        passwords = [found["password"] for found in _URL_PASSWORD.finditer(value)]
        if not all(_REFERENCE.fullmatch(password) for password in passwords):
            return (
                "holds a password in a URL; write a reference such as ${NAME} in its place, "
                "or have the job read it from its environment"
            )
    return None
