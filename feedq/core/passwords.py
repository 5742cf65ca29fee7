"""Keeps passwords in URLs from being shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

# Up to the *last* @ before white space or the next URL: people forget to encode the @ of their passwords, and
# it is better to hide too much than to show half of one.
_PASSWORD = re.compile(r"(?P<head>://[^\s/:@]*:)(?:(?!://)\S)*(?=@)")
_PASSWORD_PARAMETER = re.compile(r"(?P<head>[?&](?:ssl)?passw(?:or)?d=)[^\s&#]*", re.IGNORECASE)


def mask_url(text: str) -> str:
    """``text`` with the password of every URL in it replaced by asterisks."""
    # Most texts have neither sign: to look for those takes a tenth of the time.
    if "@" in text:
        text = _PASSWORD.sub(r"\g<head>***", text)
    if "=" in text:
        text = _PASSWORD_PARAMETER.sub(r"\g<head>***", text)
    return text


def masked(value: Any, mask: Callable[[str], str] = mask_url) -> Any:
    """Plain JSON with all of its texts masked; unless said otherwise, the passwords of URLs in them, should one
    have got in by another way."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {mask(key): masked(inner, mask) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(inner, mask) for inner in value]
    return value
