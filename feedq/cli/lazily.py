"""Imports of modules that are loaded once somebody uses them.

Settings, pydantic and the store take a third of a second of processor time to load. `feedq --version`, help and
the completion of a line need none of them, and are asked often, by scripts and shells::

    with lazily():
        from feedq.verbs import feeds  # loaded by the first feeds.list_feeds

`importlib.util.LazyLoader` looks for every module at once, which takes `--version` 15 ms, and up to Python 3.11 a
second thread may see a module that the first one has loaded by half.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any


class _LazyModule:
    """Stands for a module, and loads it when it is asked for one of its names."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        # Kept: a list of feeds asks nine times a row.
        self._module = self._module or import_module(self._name)
        return getattr(self._module, name)


def _imported(
    package: str, _globals: object, _locals: object, modules: Sequence[str], _: int
) -> SimpleNamespace:
    return SimpleNamespace(**{module: _LazyModule(f"{package}.{module}") for module in modules})


@contextmanager
def lazily() -> Iterator[None]:
    """Load no module that is imported within the block before it is used. Only ``from PACKAGE import MODULE``."""
    before = builtins.__import__
    builtins.__import__ = _imported  # type: ignore[assignment] # nothing else is imported within the block
    try:
        yield
    finally:
        builtins.__import__ = before
