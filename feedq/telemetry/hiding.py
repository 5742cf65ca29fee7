"""Imports libraries without what they import only because it is installed.

structlog imports rich for tracebacks that we print in another way, redis-py imports OpenTelemetry's SDK for
metrics that nobody asks it for: each megabytes of memory and a tenth of a second or more for each process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Have a module count as not installed for the length of the block, unless it has been imported already."""
    # A module that is None there cannot be imported.
    modules: dict[str, Any] = sys.modules
    found = modules.setdefault(name, None)
    try:
        yield
    finally:
        if found is None:
            del modules[name]


with hidden("rich"):
    import structlog as structlog
