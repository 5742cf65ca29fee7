"""Imports structlog without rich.

structlog imports rich where that is installed, for tracebacks that we print in another way: 7 MB of memory and a
tenth of a second for each process. A module that is None in `sys.modules` counts as not installed.
"""

from __future__ import annotations

import sys
from typing import Any

_modules: dict[str, Any] = sys.modules
_rich = _modules.setdefault("rich", None)

import structlog as structlog  # noqa: E402 -- not before

if _rich is None:
    del _modules["rich"]
