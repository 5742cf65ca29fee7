"""The revision that workers ask for is the last migration, and each is numbered in its order."""

from __future__ import annotations

import re
from pathlib import Path

from feedq.control.store import migrate, migrations


def test_migrations_are_numbered_up_to_the_revision_that_workers_ask_for() -> None:
    (directory,) = migrations.__path__
    found = sorted(Path(directory).glob("versions/r*.py"))
    numbers = [f"{n:04}" for n in range(1, 1 + len(found))]
    declared = [
        re.findall(r'^(?:down_)?revision = "?(\w+)"?$', path.read_text(), re.MULTILINE) for path in found
    ]
    assert declared == [[number, before] for number, before in zip(numbers, ["None", *numbers], strict=False)]
    assert [path.name[1:5] for path in found] == numbers
    assert numbers[-1] == migrate.HEAD
