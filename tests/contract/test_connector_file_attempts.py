"""The file connector over several attempts: none begins where another one would lose or double something."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from feedq.errors import SourceSilent, SourceUnavailable
from tests.contract.test_connector_file import append, driver_of, numbered, read_until


async def test_a_file_that_comes_between_two_attempts_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"

    driver = driver_of(path, start="end", missing_timeout_s=0)
    assert isinstance(await driver.read(), SourceUnavailable)
    append(path, b"1")
    await read_until(driver, 1)
    assert driver.records == [b"1"]


async def test_started_at_the_end_what_comes_between_two_attempts_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, b"old")

    driver = driver_of(path, start="end", idle_timeout_s=0.05)
    assert isinstance(await driver.read(), SourceSilent)
    append(path, b"1")
    await read_until(driver, 1)
    assert driver.records == [b"1"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES])
async def test_a_file_that_cannot_be_opened_for_now_is_not_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "log"
    append(path, *numbered(1, 2))
    works, fails = os.open, 1

    def once(where: Any, *more: Any, **options: Any) -> int:
        nonlocal fails
        if where == str(path) and fails:
            fails -= 1
            raise OSError(number, os.strerror(number), where)
        return works(where, *more, **options)

    driver = driver_of(path)
    await read_until(driver, 2)
    append(path, *numbered(3))
    monkeypatch.setattr(os, "open", once)
    assert isinstance(await driver.read(), SourceUnavailable)
    assert fails == 0
    await read_until(driver, 3)
    assert driver.records == numbered(1, 2, 3)


async def test_a_file_in_a_directory_that_cannot_be_listed_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    append(path, *numbered(1, 2))

    def refuse(where: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), where)

    driver = driver_of(path)
    await read_until(driver, 2)
    append(path, *numbered(3))
    # Modes do not bind the tests where they run as root.
    monkeypatch.setattr(os, "scandir", refuse)
    await read_until(driver, 3)
    assert driver.records == numbered(1, 2, 3)
