"""Coroutine tests run as those of `tests.unit` do."""

from __future__ import annotations

from tests.unit.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
