"""Names in addresses: one part of the path each, percent-encoded, slashes too (``acme%2Forders``)."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from fastapi import Path
from starlette.convertors import Convertor, register_url_convertor

from feedq.values import NAME_MAX


class NameConvertor(Convertor[str]):
    """Reads a name out of a path that was left as it was sent."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value, errors="replace")

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", NameConvertor())

NamePath = Annotated[
    str, Path(min_length=1, max_length=NAME_MAX, description="The name, percent-encoded: `acme%2Forders`.")
]
